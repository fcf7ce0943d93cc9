// What a call is known by: every fact that the checks, the choice of a kernel and its arguments depend on, as numbers.
#pragma once

#include "traced.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace scanops {

using Key = c10::SmallVector<int64_t, 64>;
// What a call reads, undefined where there is none; or a gradient and what was kept for it.
using Operands = c10::SmallVector<at::Tensor, 12>;

// What a call reads and what its gradient may read, then its options, by the names in kNames. Behind the former are,
// among the operands, the further tensors of a fused scan; of these and of the first kNeeds a gradient may be wanted.
// Behind `chunk` is what other calls than those of one tensor are known by.
enum Field : size_t {
    kX, kMask, kGate, kInitial, kNeeds,
    kY = kNeeds, kIndices, kStarts, kOffsets, kSaved,
    kFurther = kSaved, kOptions = kFurther,
    kOp = kOptions, kDim, kReverse, kExclusive, kFinal, kDtype, kAccumulate, kComplete, kChunk,
    kMap, kThen, kSum, kFinish, kFunction, kMethod, kSpans, kGroup, kFields
};
constexpr std::array<const char*, kFields> kNames{
    "x", "mask", "gate", "initial", "y", "indices", "starts", "offsets",
    "op", "dim", "reverse", "exclusive", "final", "dtype", "accumulate", "complete", "chunk",
    "map", "then", "sum", "finish", "function", "method", "spans", "group"};
// Names that users have for kStarts and kFinal.
constexpr std::array<const char*, 2> kUsersNames{"segment_starts", "return_final"};
constexpr uint32_t kFlags = 1u << kReverse | 1u << kExclusive | 1u << kFinal | 1u << kComplete;
constexpr size_t kMostFurther = 11;  // further tensors, which stand behind the others among the operands of a call
constexpr int64_t kAlignment = 16;  // bytes; scanops.requests.geometry.ALIGNMENT

// An option as part of a key: its type counts too, since True is equal to 1.
enum class Type : int64_t { kFlag, kNumber, kWord, kDtype, kObject, kTraced };
struct Option {
    Type type;
    int64_t value;
};

// The interned strings of kNames, then of kUsersNames, which the names of keyword arguments are, too.
using Names = std::array<PyObject*, kFields + kUsersNames.size()>;
inline const Names& names() {
    static const auto all = [] {
        Names made;
        for (size_t n = 0; n < made.size(); ++n)
            made[n] = PyUnicode_InternFromString(n < kFields ? kNames[n] : kUsersNames[n - kFields]);
        return made;
    }();
    return all;
}

// The tensors and the options of a call, as Python names them.
class CallFields {
 public:
    Operands operands;

    CallFields() { operands.resize(kFurther); }

    // Read a field. False for a name of no field, and for a value of a type that is not read here, which Python's checks
    // refuse. Names that come in the order of kNames are found at once. What is left out is None, and a flag False.
    bool read(PyObject* name, PyObject* value) {
        const size_t field = find(name);
        return field < kFields && read(static_cast<Field>(field), value);
    }

    bool read(Field field, PyObject* value) {
        if (kFlags >> field & 1) {
            if (value == Py_False) return true;
        } else if (value == Py_None) {
            return true;
        }
        given_ |= uint32_t{1} << field;
        objects_[field] = value;
        if (field >= kOptions) return read_option(options_[field - kOptions], value, field == kGroup);
        if (field == kX && (PyTuple_CheckExact(value) || PyList_CheckExact(value))) return read_tensors(value);
        return read_tensor(operands[field], value);
    }

    // Put an option in place of what was read.
    void set(Field field, Option option) {
        given_ |= uint32_t{1} << field;
        options_[field - kOptions] = option;
    }

    // Whether it is of several tensors, or computes functions in its kernel, which differs by what needs a gradient.
    bool is_fused() const { return is_list_ || has(kMap) || has(kThen) || (has(kOp) && options_[0].type == Type::kTraced); }

    // What Python gave for a field; null where that is None.
    PyObject* object(size_t field) const { return has(field) ? objects_[field] : nullptr; }

    Key key() const {
        Key key;
        for (size_t n = 0; n < options_.size(); ++n) {
            if (!has(kOptions + n)) continue;
            key.push_back(static_cast<int64_t>(n) * 8 + static_cast<int64_t>(options_[n].type));
            key.push_back(options_[n].value);
        }
        if (is_list_ && !has(kMap) && !has(kThen)) key.push_back(-1);  // of one tensor it is not that of the tensor
        return key;
    }

 private:
    bool has(size_t field) const { return given_ >> field & 1; }

    size_t find(PyObject* name) {
        for (size_t field = next_; field < kFields; ++field) {
            if (names_[field] != name) continue;
            next_ = field + 1;
            return field;
        }
        const auto interned = std::find(names_.begin(), names_.end(), name);
        const auto found = interned != names_.end() ? interned : std::find_if(names_.begin(), names_.end(), [&](auto* each) {
            return PyUnicode_Compare(each, name) == 0;
        });
        const size_t field = static_cast<size_t>(found - names_.begin());
        if (field < kFields || field == names_.size()) return std::min<size_t>(field, kFields);
        return field == kFields ? kStarts : kFinal;
    }

    static bool read_tensor(at::Tensor& operand, PyObject* value) {
        if (!THPVariable_CheckExact(value)) return false;
        operand = THPVariable_Unpack(value);
        return true;
    }

    // The first of several tensors, then further ones.
    bool read_tensors(PyObject* several) {
        const Py_ssize_t count = PySequence_Fast_GET_SIZE(several);
        if (count < 1 || count > Py_ssize_t{1 + kMostFurther}) return false;
        is_list_ = true;
        operands.resize(kFurther + static_cast<size_t>(count) - 1);
        for (Py_ssize_t n = 0; n < count; ++n)
            if (!read_tensor(operands[n ? kFurther + n - 1 : kX], PySequence_Fast_GET_ITEM(several, n))) return false;
        return true;
    }

    // The owner of a key with an object in it keeps that alive.
    static bool read_option(Option& option, PyObject* value, bool is_object) {
        if (is_object) {
            option = {Type::kObject, static_cast<int64_t>(reinterpret_cast<intptr_t>(value))};
        } else if (value == Py_True || value == Py_False) {
            option = {Type::kFlag, value == Py_True};
        } else if (PyLong_CheckExact(value)) {
            int overflow = 0;
            option = {Type::kNumber, PyLong_AsLongLongAndOverflow(value, &overflow)};
            if (overflow) return false;
        } else if (PyUnicode_CheckExact(value)) {
            option = {Type::kWord, PyObject_Hash(value)};  // 64 bits, which no two of a process's operators share
        } else if (THPDtype_Check(value)) {
            option = {Type::kDtype, static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type)};
        } else {
            const auto number = traced().find(value);
            if (!number) return false;
            const auto dtype = c10::typeMetaToScalarType(c10::get_default_dtype());  // of the numbers in expressions
            option = {Type::kTraced, *number * 256 + static_cast<int64_t>(dtype)};
        }
        return true;
    }

    bool is_list_ = false;  // whether x was a list or a tuple
    uint32_t given_ = 0;    // which fields are not None: values of others are never read
    std::array<Option, kFields - kOptions> options_;
    std::array<PyObject*, kFields> objects_;
    const Names& names_ = names();
    size_t next_ = 0;  // the field that is looked for first
};

// Append an operand. Its set of dispatch keys tells lazily negated or conjugated views, subclasses, transforms' wrappers
// and layouts apart; only what Python found fit is ever registered.
inline void append_operand(Key& key, const at::Tensor& tensor) {
    if (!tensor.defined()) {
        key.push_back(0);
        return;
    }
    key.push_back(static_cast<int64_t>(tensor.key_set().raw_repr()));
    if (!tensor.has_storage() || tensor.is_nested()) {  // sparse, batched, nested: never registered, no address or sizes
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

// Which operands a gradient is wanted of, as bits: the first kNeeds, then further tensors. None where that is another.
inline std::optional<size_t> find_needs(const Operands& operands) {
    size_t needs = 0;
    if (!at::GradMode::is_enabled()) return needs;
    for (size_t n = 0; n < operands.size(); ++n) {
        if (!operands[n].defined() || !operands[n].requires_grad()) continue;
        if (n >= kNeeds && n < kFurther) return std::nullopt;
        needs |= size_t{1} << (n < kNeeds ? n : kNeeds + n - kFurther);
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
