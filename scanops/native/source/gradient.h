// The gradient of a sum is the sum from the other end: a node of autograd's graph that launches it itself.
#pragma once

#include "launch.h"

#include <ATen/ops/where.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

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
        return {by_python(gradient, mask)};
    }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        mask_.reset_data();
    }

    std::string name() const override { return "ScanBackward"; }

    void keep(const Adjoint* adjoint, const at::Tensor& mask) {
        adjoint_ = adjoint;
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
    at::Tensor by_python(const at::Tensor& gradient, const at::Tensor& mask) const {
        const py::gil_scoped_acquire locked;
        auto wrapped = [](const at::Tensor& each) {
            return each.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(each)) : py::none();
        };
        const auto found = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
            surroundings().backward, adjoint_->asked, wrapped(gradient).ptr(), wrapped(mask).ptr(), nullptr));
        if (!found) raise();
        return THPVariable_Unpack(found.ptr());
    }

    const Adjoint* adjoint_ = nullptr;  // never freed: there are as many as there are combinations of options
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

inline void record(const Entry& entry, const Operands& operands, const at::Tensor& result) {
    auto node = make_node<ScanBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(operands[0]));
    node->keep(entry.adjoint, operands[1]);
    torch::autograd::impl::set_gradient_edge(result, {node, node->add_input_metadata(result)});
}

}  // namespace scanops
