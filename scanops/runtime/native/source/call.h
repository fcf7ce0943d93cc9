// What a call is known by: every fact that the checks, the choice of a kernel and its arguments depend on, as numbers.
#pragma once

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace scanops {

using Key = c10::SmallVector<int64_t, 64>;
// What a call reads, undefined where there is none; or a gradient and what was kept for it.
using Operands = c10::SmallVector<at::Tensor, 12>;

// What a call reads, and what its gradient may read, in this order; of the first kNeeds a gradient may be wanted. Behind
// them are offsets, of whose calls no gradient is computed here.
enum Kept : size_t { kX, kMask, kGate, kInitial, kNeeds, kY = kNeeds, kIndices, kStarts, kKept };
constexpr size_t kOffsets = kKept, kOperands = kKept + 1;  // of a call
constexpr int64_t kAlignment = 16;  // bytes; scanops.requests.geometry.ALIGNMENT

// Pass Python's error on, through C++ and through autograd's threads. Needs the interpreter's lock.
[[noreturn]] inline void raise() {
    python_error error;
    error.persist();
    throw error;  // NOLINT: by value, as torch does
}

// A reference to an object, dropped from whatever thread.
using Reference = std::shared_ptr<PyObject>;

inline Reference held(PyObject* object) {
    return Reference(Py_NewRef(object), [](PyObject* each) {
        const auto state = PyGILState_Ensure();
        Py_DECREF(each);
        PyGILState_Release(state);
    });
}

// The type of an option, which precedes its value in a key: True is equal to 1.
enum Type : int64_t { kNone, kFlag, kNumber, kWord, kDtype, kObject };
// Places in a key: of the value of Call.dim, and of the type of Call.dtype.
constexpr size_t kDimAt = 3, kResultAt = 10;

// An object that is part of a key. The owner of the key keeps it alive.
inline void append_object(Key& key, PyObject* object) {
    key.push_back(kObject);
    key.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(object)));
}

// Append a call's options to a key, each with its type. False for a value of any other type, which Python's checks
// refuse. The order is that of scanops.requests.call.Call.
inline bool append_options(Key& key, PyObject* options) {
    if (!PyTuple_Check(options)) return false;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(options); ++n) {
        PyObject* const each = PyTuple_GET_ITEM(options, n);
        Type type = kNone;
        int64_t value = 0;
        if (each == Py_True || each == Py_False) {
            type = kFlag;
            value = each == Py_True;
        } else if (PyLong_CheckExact(each)) {
            int overflow = 0;
            type = kNumber;
            value = PyLong_AsLongLongAndOverflow(each, &overflow);
            if (overflow) return false;
        } else if (PyUnicode_CheckExact(each)) {
            type = kWord;
            value = PyObject_Hash(each);  // 64 bits, which no two of a process's operators share
        } else if (THPDtype_Check(each)) {
            type = kDtype;
            value = static_cast<int64_t>(reinterpret_cast<THPDtype*>(each)->scalar_type);
        } else if (each != Py_None) {
            return false;
        }
        key.push_back(type);
        key.push_back(value);
    }
    return true;
}

// Which operands a call has, out of its Inputs: their places as Kept, those of results left empty. False where one is
// no plain tensor, and where there are others: the fields of Inputs behind `initial`, which only backward passes in
// Python fill.
inline bool read_operands(Operands& operands, PyObject* inputs) {
    constexpr std::array<size_t, 6> places{kX, kMask, kGate, kStarts, kOffsets, kInitial};
    if (!PyTuple_Check(inputs)) return false;
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(inputs));
    operands.resize(kOperands);
    for (size_t n = 0; n < count; ++n) {
        PyObject* each = PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(n));
        if (each == Py_None) continue;
        if (n >= places.size() || !THPVariable_CheckExact(each)) return false;
        operands[places[n]] = THPVariable_Unpack(each);
    }
    return operands[kX].defined();
}

// Append an operand. Its set of dispatch keys tells lazily negated or conjugated views, subclasses, transforms' wrappers
// and layouts apart; only what Python found fit was ever learnt.
inline void append_operand(Key& key, const at::Tensor& tensor) {
    if (!tensor.defined()) {
        key.push_back(0);
        return;
    }
    key.push_back(static_cast<int64_t>(tensor.key_set().raw_repr()));
    if (!tensor.has_storage() || tensor.is_nested()) {  // sparse, batched, nested: never learnt, no address or sizes
        key.push_back(-1);
        return;
    }
    const bool aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
    const auto type = static_cast<int64_t>(tensor.scalar_type());
    key.push_back(((tensor.dim() * 512 + tensor.get_device() + 1) * 256 + type) * 2 + aligned);
    key.append(tensor.sizes().begin(), tensor.sizes().end());
    key.append(tensor.strides().begin(), tensor.strides().end());
}

// Whether anything looks at, or changes the meaning of, the operations of this thread: a transform, a mode, a trace.
inline bool watched() {
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    const auto usual = c10::default_included_set | c10::autocast_dispatch_keyset;
    return !(keys.included_ - usual).empty() || at::impl::torch_function_mode_enabled();
}

// Append what else decides: the operands, the emulated GPU, and autocast, under which some results have another dtype.
inline void append_rest(Key& key, const Operands& operands, int64_t multiprocessors) {
    const auto autocast = c10::default_excluded_set - c10::impl::tls_local_dispatch_key_set().excluded_;
    key.append({static_cast<int64_t>(autocast.raw_repr()), multiprocessors});
    for (const auto& operand : operands) append_operand(key, operand);
}

// Which operands a gradient is wanted of, as bits of Kept; none where that is one which has none here, as further
// tensors of a fused scan have.
inline std::optional<size_t> find_needs(const Operands& operands) {
    size_t needs = 0;
    if (!at::GradMode::is_enabled()) return needs;
    for (size_t n = 0; n < operands.size(); ++n) {
        if (!operands[n].defined() || !operands[n].requires_grad()) continue;
        if (n >= kNeeds) return std::nullopt;
        needs |= size_t{1} << n;
    }
    return needs;
}

// Whether this code runs below autograd.
inline bool is_below_autograd() {
    return c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

// Whether a tensor takes part in forward differentiation.
inline bool is_dual(const at::Tensor& tensor) {
    return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace scanops
