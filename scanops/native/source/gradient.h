// The gradient of a sum is the sum from the other end: a node of autograd's graph that launches it itself.
#pragma once

#include "launch.h"

#include <ATen/ops/where.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <type_traits>

namespace scanops {

// A table entry in a node would keep what clear() has dropped: the node holds what is asked of it, and looks it up.
class ScanBackward : public torch::autograd::Node {
 public:
    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
        const at::Tensor& gradient = gradients[0];
        if (!gradient.defined() || !should_compute_output(0)) return {at::Tensor()};
        const at::Tensor mask = kept();
        if (!at::GradMode::is_enabled()) {
            at::Tensor found = by_kernel(gradient);
            if (found.defined()) return {masked_ ? at::where(mask, found, 0) : found};
        }
        return {by_python(*adjoint_, policy_, gradient, mask)};
    }

    // What a graph of compiled autograd is known by: all that this node's gradient depends on.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& given) const override {
        given.collect(static_cast<int64_t>(reinterpret_cast<uintptr_t>(adjoint_)));
        given.collect(policy_);
        given.collect(masked_);
        if (masked_) given.collect(mask_, /*is_output=*/false);
    }

    // Into such a graph: Python's turn, which is an operation to who traces it.
    torch::autograd::variable_list apply_with_saved(
        const torch::autograd::variable_list& gradients, torch::dynamo::autograd::SwapSavedVariables& saved) override {
        namespace compiled = torch::dynamo::autograd;
        compiled::ivalue_list kept;
        std::vector<at::TypePtr> types;
        if (masked_) {
            saved.before(mask_);
            kept.emplace_back(mask_.unpack());
            types.emplace_back(at::TensorType::get());
        }
        auto turn = [adjoint = adjoint_, policy = policy_](
                        const torch::autograd::variable_list& given,
                        const compiled::ivalue_list& read) -> torch::autograd::variable_list {
            if (!given[0].defined()) return {at::Tensor()};
            return {by_python(*adjoint, policy, given[0], read.empty() ? at::Tensor() : read[0].toTensor())};
        };
        const auto& compiler = compiled::getPyCompilerInterface();
        const auto bound = compiler->bind_function(
            saved.get_py_compiler(), name(), turn, types, /*is_custom_function=*/true, /*is_traceable=*/true);
        using Expected = std::vector<std::optional<torch::autograd::InputMetadata>>;
        auto results = compiler->call_function(
            saved.get_py_compiler(), "apply_functional", bound, gradients, kept,
            compiled::IValuePacker<Expected>::pack(compiled::get_input_metadata(next_edges())));
        if (masked_) saved.after(mask_);
        return results;
    }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        mask_.reset_data();
    }

    std::string name() const override { return "ScanBackward"; }

    void keep(const Adjoint* adjoint, const at::Tensor& mask, int64_t policy) {
        adjoint_ = adjoint;
        policy_ = policy;
        masked_ = mask.defined();
        if (masked_) mask_ = torch::autograd::SavedVariable(mask, /*is_output=*/false);
    }

 private:
    // The mask. Raises where it was changed, or let go of.
    at::Tensor kept() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return masked_ ? mask_.unpack() : at::Tensor();
    }

    at::Tensor by_kernel(const at::Tensor& gradient) const {
        const Operands operands{gradient, at::Tensor(), at::Tensor(), at::Tensor()};
        if (is_dual(gradient)) return {};
        const Found found = look_up(adjoint_->options, operands);
        if (found.entry == nullptr) return {};
        Results results;
        const int code = launch(found, operands, results);
        if (code != 0) {
            const py::gil_scoped_acquire locked;
            raise_failure(*found.entry, code);
        }
        return results[0];
    }

    // What no kernel was learnt for yet, and what is to be differentiated again.
    static at::Tensor by_python(
        const Adjoint& adjoint, int64_t policy, const at::Tensor& gradient, const at::Tensor& mask) {
        const py::gil_scoped_acquire locked;
        auto wrapped = [](const at::Tensor& each) {
            return each.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(each)) : py::none();
        };
        const auto found = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
            surroundings().backward, adjoint.asked, wrapped(gradient).ptr(), wrapped(mask).ptr(), words().word(policy),
            nullptr));
        if (!found) raise();
        return THPVariable_Unpack(found.ptr());
    }

    const Adjoint* adjoint_ = nullptr;  // never freed: there are as many as there are combinations of options
    int64_t policy_ = -1;               // the number of its name: that of the block in which the scan was called
    bool masked_ = false;
    torch::autograd::SavedVariable mask_;
};

// Nodes are counted by std::shared_ptr up to some version of torch, then by c10::intrusive_ptr.
template <class Made, class Pointer = decltype(torch::autograd::Edge::function)>
auto make_node() {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
        return std::shared_ptr<Made>(new Made, [](auto* node) { deleteNode(node); });
    else
        return c10::make_intrusive<Made>();
}

// The number of the policy of the innermost block here, -1 outside of all. Needs the interpreter's lock.
inline int64_t policy() {
    PyObject* scoped = nullptr;
    if (PyContextVar_Get(surroundings().policy, nullptr, &scoped) < 0) raise();
    const int64_t number = scoped == nullptr || scoped == Py_None ? -1 : words().learn(scoped);
    Py_XDECREF(scoped);
    return number;
}

inline void record(const Entry& entry, const Operands& operands, const at::Tensor& result) {
    auto node = make_node<ScanBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(operands[0]));
    node->keep(entry.adjoint, operands[1], policy());
    torch::autograd::impl::set_gradient_edge(result, {node, node->add_input_metadata(result)});
}

}  // namespace scanops
