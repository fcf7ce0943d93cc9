// torch's own scans, taken over in its dispatcher without Python: scanops.patching registers these kernels.
#pragma once

#include "gradient.h"

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>

namespace scanops {

// The scans that are mostly their launch, which torch's kernel computes as fast: scanops.patching.Small says why.
struct Small {
    int64_t bytes, row_items, column_items;  // of scans along a contiguous dimension, and along any other
    int64_t single_bytes;                    // of one contiguous scan; 0 where torch has no faster kernel for it

    bool holds(const at::Tensor& x, int64_t dim) const {
        const int64_t bytes_of_x = x.numel() * static_cast<int64_t>(x.element_size());
        if (bytes_of_x > std::max(bytes, single_bytes) || at::globalContext().deterministicAlgorithms()) return false;
        if (x.dim() == 0 || x.numel() == 0) return bytes > 0;
        if (dim < -x.dim() || dim >= x.dim()) return false;
        const int64_t items = x.size(dim);
        if (items == x.numel() && x.is_contiguous() && bytes_of_x <= single_bytes) return true;
        return bytes_of_x <= bytes && items <= (x.stride(dim) == 1 ? row_items : column_items);
    }
};

// A kernel of an operator (x, dim, ...). A small scan is left to torch's kernel, a functional scan that is registered is
// launched, and all else goes to `python`, which is scanops.patching's.
class PatchedKernel : public c10::OperatorKernel {
 public:
    PatchedKernel(
        c10::SafeKernelFunction torch, c10::SafeKernelFunction python, CallFields call, bool is_functional,
        bool is_recorded, Small small, PyObject* sharded, PyObject* blocks)
        : torch_(std::move(torch)),
          python_(std::move(python)),
          call_(std::move(call)),
          is_functional_(is_functional),
          is_recorded_(is_recorded),
          small_(small),
          sharded_(held(sharded)),
          blocks_(held(blocks)) {
        const auto& arguments = torch_.opHandle().schema().arguments();
        count_ = arguments.size();
        has_dtype_ = count_ > kDtypeAt && arguments[kDtypeAt].name() == "dtype";
    }

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
        if (Py_SIZE(blocks_.get()) == 0) {  // as below
            torch_.callBoxed(op, keys, stack);
            return;
        }
        const at::Tensor& x = torch::jit::peek(*stack, 0, count_).toTensor();
        // The list's length is one word, which may be read without the interpreter's lock.
        if (is_plain(x) && Py_SIZE(sharded_.get()) == 0 && !watched()) {
            const int64_t dim = torch::jit::peek(*stack, 1, count_).toInt();
            if (small_.holds(x, dim)) {
                torch_.callBoxed(op, keys, stack);
                return;
            }
            Results results;
            if (is_functional_ && launch_registered(x, dim, *stack, results)) {
                torch::jit::drop(*stack, count_);
                for (auto& each : results) stack->emplace_back(std::move(each));
                return;
            }
        }
        python_.callBoxed(op, keys, stack);
    }

 private:
    static constexpr size_t kDtypeAt = 2;

    // Whether a tensor has memory that a kernel may read: not symbolic, sparse, nested, a batch or known to be zero.
    static bool is_plain(const at::Tensor& x) {
        const bool has_memory = x.has_storage() && x.layout() == at::kStrided && !x.is_nested();
        return has_memory && !x.unsafeGetTensorImpl()->is_python_dispatch();
    }

    bool launch_registered(const at::Tensor& x, int64_t dim, const torch::jit::Stack& stack, Results& results) const {
        CallFields call = call_;
        call.set(kDim, {Type::kNumber, dim});
        if (has_dtype_) {
            const auto& dtype = torch::jit::peek(stack, kDtypeAt, count_);
            if (!dtype.isNone()) call.set(kDtype, {Type::kDtype, static_cast<int64_t>(dtype.toScalarType())});
        }
        Operands& operands = call.operands;
        operands[kX] = x;
        const LookUpResult found = look_up(call.key(), operands);
        const bool needs = is_recorded_ && at::GradMode::is_enabled() && x.requires_grad();
        if (found.entry == nullptr || is_dual(x)) return false;
        const auto adjoint = needs ? found.entry->find_adjoint(size_t{1} << kX) : nullptr;
        if (needs && (adjoint == nullptr || has_saving_hooks())) return false;
        launch(found, operands, results);
        if (needs) {
            const py::gil_scoped_acquire locked;
            record(*found.entry, adjoint, operands, results);
        }
        return true;
    }

    // Whether someone else keeps what autograd saves, such as a checkpoint.
    static bool has_saving_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

    const c10::SafeKernelFunction torch_, python_;
    const CallFields call_;  // without dtype, along dimension 0
    const bool is_functional_, is_recorded_;
    const Small small_;
    const Reference sharded_;  // the list of open blocks of scanops.distributed.sharded
    const Reference blocks_;   // the list of open blocks of scanops.patching
    size_t count_;             // arguments of the operator
    bool has_dtype_;
};

inline c10::SafeKernelFunction kernel_of(const std::string& name, const std::string& overload, c10::DispatchKey key) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str());
    return op.getComputedKernelForDispatchKey(key);
}

// The kernel that an operator has until the object goes.
class Patch {
 public:
    // torch's kernel is read here, Python's by install(): it is registered between the two.
    Patch(std::string name, std::string overload, const std::string& key)
        : name_(std::move(name)),
          overload_(std::move(overload)),
          key_(c10::parseDispatchKey(key)),
          torch_(kernel_of(name_, overload_, key_)) {}

    void install(CallFields call, bool is_functional, bool is_recorded, Small small, PyObject* sharded,
                 PyObject* blocks) {
        auto kernel = std::make_unique<PatchedKernel>(
            torch_, kernel_of(name_, overload_, key_), std::move(call), is_functional, is_recorded, small, sharded, blocks);
        library_ = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key_, "scanops", 0);
        const std::string whole = overload_.empty() ? name_ : name_ + "." + overload_;
        library_->impl(whole.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }

 private:
    const std::string name_, overload_;
    const c10::DispatchKey key_;
    const c10::SafeKernelFunction torch_;
    std::unique_ptr<torch::Library> library_;
};

}  // namespace scanops
