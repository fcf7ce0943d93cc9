// The gradient of a scan is another scan: a node of autograd's graph that launches it itself.
#pragma once

#include "table.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace scanops {

// Nodes are counted by std::shared_ptr up to some version of torch, then by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Made, class Pointer = NodePointer>
auto make_node() {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
        return std::shared_ptr<Made>(new Made, [](auto* node) { deleteNode(node); });
    else
        return c10::make_intrusive<Made>();
}

template <class Made, class Pointer = NodePointer>
Pointer pointer_to(Made* node) {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
        return node->shared_from_this();
    else
        return Pointer::unsafe_reclaim_from_nonowning(node);
}

// What the node of a linked call keeps besides.
struct Linked {
    Reference noted;  // what Entry.begin returned
    at::Tensor entered;
};

// A table entry in a node would keep what clear() has dropped: the node holds what is asked of it, and looks it up.
class ScanBackward : public torch::autograd::Node {
 public:
    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
        torch::autograd::variable_list found(num_outputs());
        const bool linked = noted_ != nullptr;  // other ranks wait for this one's pass, whatever its gradients
        if (!linked && !any(gradients)) return found;
        Operands given = begun(gradients);
        const at::Tensor entered = unpack(given);
        if (linked && !at::GradMode::is_enabled()) begin(*adjoint_, policy_.get(), noted_.get(), given);
        const bool known = !at::GradMode::is_enabled() && by_recipe(given, entered, found);
        if (!known) by_python(*adjoint_, policy_.get(), noted_.get(), given, entered, found);
        if (linked && !found[kInitial].defined() && task_should_compute_output(kInitial)) {
            const auto& edge = next_edge(kInitial);  // which no kernel of this rank reads
            found[kInitial] = edge.function->input_metadata(edge.input_nr).zeros_like();
        }
        return found;
    }

    // What a graph of compiled autograd is known by: the gradient that is asked for, and what it reads.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& given) const override {
        given.collect(adjoint_->number);
        given.collect(held_);
        for (size_t n = 0; n < saved_.size(); ++n)
            if (holds(n)) given.collect(saved_[n], /*is_output=*/(outputs_ >> n & 1) != 0);
    }

    // Into such a graph: Python's turn, which is operations to who traces it. They go by the policy where it runs.
    torch::autograd::variable_list apply_with_saved(
        const torch::autograd::variable_list& gradients, torch::dynamo::autograd::SwapSavedVariables& saved) override {
        namespace compiled = torch::dynamo::autograd;
        compiled::ivalue_list read;
        std::vector<at::TypePtr> types;
        for (size_t n = 0; n < saved_.size(); ++n) {
            if (!holds(n)) continue;
            saved.before(saved_[n]);
            read.emplace_back(saved_[n].unpack(pointer_to(this)));
            types.emplace_back(at::TensorType::get());
        }
        auto turn = [adjoint = adjoint_, held = held_, noted = noted_, count = num_outputs()](
                        const torch::autograd::variable_list& asked,
                        const compiled::ivalue_list& read) -> torch::autograd::variable_list {
            torch::autograd::variable_list found(count);
            if (noted == nullptr && !any(asked)) return found;
            Operands given = begun(asked);
            for (size_t n = 0, next = 0; n <= adjoint->saves.size(); ++n)
                given.push_back(held >> n & 1 ? read[next++].toTensor() : at::Tensor());
            const at::Tensor entered = given.pop_back_val();
            if (noted != nullptr && !at::GradMode::is_enabled()) begin(*adjoint, Py_None, noted.get(), given);
            by_python(*adjoint, Py_None, noted.get(), given, entered, found);
            return found;
        };
        const auto& compiler = compiled::getPyCompilerInterface();
        const auto bound = compiler->bind_function(
            saved.get_py_compiler(), name(), turn, types, /*is_custom_function=*/true,
            /*is_traceable=*/noted_ == nullptr);
        using Expected = std::vector<std::optional<torch::autograd::InputMetadata>>;
        auto results = compiler->call_function(
            saved.get_py_compiler(), "apply_functional", bound, gradients, read,
            compiled::IValuePacker<Expected>::pack(compiled::get_input_metadata(next_edges())));
        for (size_t n = 0; n < saved_.size(); ++n)
            if (holds(n)) saved.after(saved_[n]);
        return results;
    }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (auto& each : saved_) each.reset_data();
    }

    std::string name() const override { return "ScanBackward"; }

    // Results from `hidden` on are not the user's; `policy` is a word or None.
    void save(
        std::shared_ptr<const Adjoint> adjoint, const Operands& operands, const Results& results, size_t hidden,
        Reference policy, const Linked& linked) {
        adjoint_ = std::move(adjoint);
        policy_ = std::move(policy);
        noted_ = linked.noted;
        saved_.resize(adjoint_->saves.size() + 1);
        auto keep = [&](size_t n, const at::Tensor& tensor, bool is_output) {
            if (!tensor.defined()) return;
            saved_[n] = torch::autograd::SavedVariable(tensor, is_output);
            held_ |= int64_t{1} << n;
            outputs_ |= int64_t{is_output} << n;
        };
        for (size_t n = 0; n < adjoint_->saves.size(); ++n) {
            if (adjoint_->saves[n] < 0) continue;
            const auto place = static_cast<size_t>(adjoint_->saves[n]), result = place - operands.size();
            if (place < operands.size())
                keep(n, operands[place], false);
            else
                keep(n, results[result], result < hidden && results[result].requires_grad());
        }
        keep(adjoint_->saves.size(), linked.entered, false);
    }

 private:
    bool holds(size_t n) const { return (held_ >> n & 1) != 0; }

    static bool any(const torch::autograd::variable_list& gradients) {
        return std::any_of(gradients.begin(), gradients.end(), [](const auto& each) { return each.defined(); });
    }

    // The gradients of the results that have any, and of the carry-out: at least two, as Python numbers them.
    static Operands begun(const torch::autograd::variable_list& gradients) {
        Operands given(gradients.begin(), gradients.end());
        if (given.size() < 2) given.emplace_back();
        return given;
    }

    // What was saved, behind the gradients; returns the carry-in that has entered. Raises where it was changed, or let go
    // of.
    at::Tensor unpack(Operands& given) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& each : saved_) given.push_back(each.unpack(pointer_to(this)));
        return given.pop_back_val();
    }

    // What precedes the pass of a linked call: it may replace the gradients.
    static void begin(const Adjoint& adjoint, PyObject* policy, PyObject* noted, Operands& given) {
        const py::gil_scoped_acquire locked;
        const py::object own = wrapped(given[0]), final = wrapped(given[1]);
        const auto found = py::reinterpret_steal<py::object>(
            PyObject_CallFunctionObjArgs(adjoint.begin.get(), policy, noted, own.ptr(), final.ptr(), nullptr));
        if (!found) raise();
        if (found.is_none()) return;
        for (size_t n = 0; n < 2; ++n) {
            PyObject* const each = PyTuple_GET_ITEM(found.ptr(), static_cast<Py_ssize_t>(n));
            given[n] = unwrapped(each);
        }
    }

    bool by_recipe(Operands given, const at::Tensor& entered, torch::autograd::variable_list& found) const {
        if (entered.defined()) given[2 + kInitial] = entered;  // where kernels read it
        for (const auto& each : given)
            if (is_dual(each)) return false;
        const LookUpResult known = look_up({-1, adjoint_->number}, given);
        if (known.entry == nullptr) return false;
        Results results;
        launch(known, given, results);
        for (size_t n = 0; n < found.size(); ++n)
            if (known.entry->gives[n] >= 0) found[n] = results[known.entry->gives[n]];
        return true;
    }

    // What no steps are registered for yet, and what is to be differentiated again.
    static void by_python(
        const Adjoint& adjoint, PyObject* policy, PyObject* noted, const Operands& given, const at::Tensor& entered,
        torch::autograd::variable_list& found) {
        const py::gil_scoped_acquire locked;
        py::tuple arguments(given.size());
        for (size_t n = 0; n < given.size(); ++n) arguments[n] = wrapped(given[n]);
        const py::object last = wrapped(entered);
        PyObject* const linked = noted == nullptr ? nullptr : last.ptr();  // the last of two arguments, or of four
        const auto results = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
            adjoint.python.get(), policy, arguments.ptr(), linked, noted, nullptr));
        if (!results) raise();
        for (size_t n = 0; n < found.size(); ++n)
            found[n] = unwrapped(PyTuple_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(n)));
    }

    std::shared_ptr<const Adjoint> adjoint_;
    Reference policy_, noted_;  // the latter of a linked call
    int64_t held_ = 0, outputs_ = 0;  // which there are of these, and which are results that have a gradient, as bits
    // As Adjoint.saves; then, of a linked call, the carry-in that came from another rank.
    std::vector<torch::autograd::SavedVariable> saved_;
};

// Needs the interpreter's lock.
inline void record(
    const Entry& entry, std::shared_ptr<const Adjoint> adjoint, const Operands& operands, const Results& results,
    const Linked& linked = {}) {
    auto node = make_node<ScanBackward>();
    torch::autograd::variable_list inputs(operands.begin(), operands.begin() + kNeeds);
    inputs.insert(inputs.end(), operands.begin() + kFurther, operands.end());
    node->set_next_edges(torch::autograd::collect_next_edges(at::TensorList(inputs)));
    const size_t hidden = results.size() - entry.final - entry.hidden;
    for (size_t n = 0; n < results.size(); ++n) {
        if (n >= hidden && n < hidden + entry.hidden) continue;
        const auto type = results[n].scalar_type();
        if (at::isFloatingType(type) || at::isComplexType(type))
            torch::autograd::impl::set_gradient_edge(results[n], {node, node->add_input_metadata(results[n])});
    }
    PyObject* policy = nullptr;
    if (PyContextVar_Get(surroundings().policy, Py_None, &policy) < 0) raise();
    // After the edges, which are part of results that are saved.
    node->save(
        std::move(adjoint), operands, results, hidden, held(py::reinterpret_steal<py::object>(policy).ptr()), linked);
}

}  // namespace scanops
