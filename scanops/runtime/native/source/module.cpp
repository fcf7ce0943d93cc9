// The module: serve, register_call, register_gradient, clear, patch. See scanops/runtime/native/__init__.py for who calls
// them.
#include "patch.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace scanops {
namespace {

py::tuple tuple_of(const Results& results) {
    auto tuple = py::tuple(results.size());
    for (size_t n = 0; n < results.size(); ++n)
        PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(n), THPVariable_Wrap(results[n]));
    return tuple;
}

// Append what needs a gradient to the key of a fused call, whose kernel writes what its gradient reads, and of a linked
// call, whose message to other ranks depends on it.
Key key_of(const CallFields& call, size_t needs) {
    Key key = call.key();
    if (call.is_fused() || call.object(kGroup) != nullptr) key.push_back(static_cast<int64_t>(needs));
    return key;
}

// Let Python do what follows the launch of a linked call: it may replace the results.
at::Tensor finish(const Entry& entry, Results& results) {
    const at::AutoGradMode no_grad(false);
    const py::tuple all = tuple_of(results);
    const auto found = py::reinterpret_steal<py::object>(PyObject_CallOneArg(entry.finish.get(), all.ptr()));
    if (!found) raise();
    const auto [finished, entered] = found.cast<std::pair<py::tuple, py::object>>();
    results.clear();
    for (const auto& each : finished) results.push_back(THPVariable_Unpack(each.ptr()));
    return entered.is_none() ? at::Tensor() : THPVariable_Unpack(entered.ptr());
}

// Whether forward differentiation has a part in a call. With other ranks it has where it is active at all: Python refuses
// that.
bool has_tangents(const Operands& operands, bool is_linked) {
    if (is_linked) return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
    for (const auto& operand : operands)
        if (is_dual(operand)) return true;
    return false;
}

// The key has the shape of offsets, not their values.
void check_offsets(const Entry& entry, const CallFields& call) {
    const at::Tensor& offsets = call.operands[kOffsets];
    if (!offsets.defined() || (!offsets.is_inference() && entry.offsets.holds(offsets))) return;
    const auto answer = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        surroundings().check_offsets, call.object(kOp), call.object(kDim), call.object(kOffsets), call.object(kX),
        nullptr));
    if (!answer) raise();
    entry.offsets.keep(offsets);
}

// serve(x, gate, op, dim, options, *, ...), or by names of kNames alone, of which options is a dictionary: the result, a
// tuple of several, or None where Python is to serve. Of a call whose kernels have links to other ranks, as its group
// is, always a tuple.
PyObject* serve(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* given_names) {
    HANDLE_TH_ERRORS
    CallFields call;
    if (count != 0) {
        if (count != 5 || !PyDict_CheckExact(given[4])) throw py::type_error("serve takes x, gate, op, dim and options");
        constexpr std::array<Field, 4> fields{kX, kGate, kOp, kDim};
        for (size_t n = 0; n < fields.size(); ++n)
            if (!call.read(fields[n], given[n])) Py_RETURN_NONE;
        PyObject *name, *value;
        for (Py_ssize_t n = 0; PyDict_Next(given[4], &n, &name, &value);)
            if (!call.read(name, value)) Py_RETURN_NONE;
    }
    for (Py_ssize_t n = 0; given_names != nullptr && n < PyTuple_GET_SIZE(given_names); ++n)
        if (!call.read(PyTuple_GET_ITEM(given_names, n), given[count + n])) Py_RETURN_NONE;
    const Operands& operands = call.operands;
    if (!operands[kX].defined()) Py_RETURN_NONE;
    const auto found_needs = find_needs(operands);
    if (!found_needs) Py_RETURN_NONE;
    const size_t needs = *found_needs;
    const LookUpResult found = look_up(key_of(call, needs), operands);
    if (found.entry == nullptr) Py_RETURN_NONE;
    const Entry& entry = *found.entry;
    const auto adjoint = needs ? entry.find_adjoint(needs) : nullptr;
    if (needs && (adjoint == nullptr || is_below_autograd())) Py_RETURN_NONE;
    const bool is_linked = entry.begin != nullptr;
    if (has_tangents(operands, is_linked)) Py_RETURN_NONE;
    check_offsets(entry, call);
    Linked linked;
    if (is_linked) {
        const auto noted = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(entry.begin.get()));
        if (!noted) raise();
        linked.noted = held(noted.ptr());
    }
    Results results;
    {
        const py::gil_scoped_release unlocked;  // the device's queue may be full, or an emulated kernel waits
        launch(found, operands, results);
    }
    if (entry.finish != nullptr) linked.entered = finish(entry, results);
    if (needs) record(entry, adjoint, operands, results, linked);
    const auto hidden = results.end() - static_cast<int64_t>(entry.hidden) - entry.final;
    results.erase(hidden, hidden + static_cast<int64_t>(entry.hidden));
    if (results.size() == 1 && !is_linked) return THPVariable_Wrap(std::move(results[0]));
    return tuple_of(results).release().ptr();
    END_HANDLE_TH_ERRORS
}

using Numbers = std::vector<int64_t>;

// The named tuples of scanops/runtime are read by the names of their fields.
template <class Read>
Read read_field(const py::handle& from, const char* name) {
    return from.attr(name).cast<Read>();
}

// A step, of a NativeOperation or of a NativeLaunch.
Step step_of(const py::handle& given) {
    Step step;
    if (py::hasattr(given, "compute")) {
        step.compute = given.attr("compute").ptr();
        for (const int64_t place : read_field<Numbers>(given, "reads")) step.reads.push_back({place, 0, 0});
        return step;
    }
    const py::object launcher = given.attr("launcher"), binding = given.attr("template");
    const auto offsets = read_field<Numbers>(binding, "reads");
    const auto arguments = read_field<std::string>(binding, "arguments");
    if (arguments.size() > kMostArguments) throw py::type_error("arguments that there is no room for");
    step.arguments.assign(arguments.begin(), arguments.end());
    for (const auto& [which, place, skip] : read_field<std::vector<std::tuple<int64_t, int64_t, int64_t>>>(given, "reads"))
        step.reads.push_back({place, offsets.at(which), skip});
    for (const auto& each : binding.attr("outputs")) {
        const auto [offset, sizes, dtype, skip] = each.cast<std::tuple<int64_t, Numbers, py::object, int64_t>>();
        step.outputs.push_back({offset, sizes, reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, skip});
    }
    step.function = reinterpret_cast<LaunchKernel>(read_field<uintptr_t>(binding, "launch"));
    step.early = reinterpret_cast<LaunchKernelEx>(read_field<uintptr_t>(binding, "launch_early"));
    const py::object kernel = binding.attr("kernel");
    step.kernel = Kernel{
        reinterpret_cast<void*>(read_field<uintptr_t>(kernel, "handle")), read_field<unsigned>(kernel, "blocks"),
        read_field<unsigned>(kernel, "threads"), read_field<unsigned>(kernel, "shared_bytes"),
        read_field<Numbers>(kernel, "parameters")};
    if (step.kernel.parameters.size() > kMostParameters)
        throw py::type_error("parameters that there is no room for");
    const auto configure = read_field<uintptr_t>(binding, "configure");
    step.configure = reinterpret_cast<void (*)(unsigned long long, int)>(configure);
    std::tie(step.workspace_offset, step.workspace_bytes) =
        read_field<std::pair<int64_t, int64_t>>(binding, "workspace");
    step.launcher = launcher.ptr();
    step.link = reinterpret_cast<const volatile uint64_t*>(read_field<uintptr_t>(binding, "link"));
    return step;
}

// `key` holds the options, or which gradient it is; `steps` is a tuple of what step_of() reads.
std::shared_ptr<Entry> entry_of(Key key, const Operands& operands, int64_t multiprocessors, const py::tuple& steps) {
    auto entry = std::make_shared<Entry>();
    entry->owned = held(steps.ptr());
    append_rest(key, operands, multiprocessors);
    entry->key = std::move(key);
    for (const auto& each : steps) entry->steps.push_back(step_of(each));
    return entry;
}

// What Python has for an attribute; null where that is None.
Reference held_attribute(const py::handle& from, const char* name) {
    const py::object found = from.attr(name);
    return found.is_none() ? nullptr : held(found.ptr());
}

// None of a call that serve() leaves to Python.
std::optional<CallFields> read_fields(const py::handle& fields) {
    CallFields call;
    for (const auto& [name, value] : fields.cast<py::dict>())
        if (!call.read(name.ptr(), value.ptr())) return std::nullopt;
    return call;
}

// register_call(fields, multiprocessors, steps, final, hidden, adjoints, link): a dictionary with names of kNames;
// tuples of what step_of() reads and of CallGradient; a LinkedCall, or None.
PyObject* register_call(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    const auto [fields, multiprocessors, steps, final, hidden, adjoints, link] =
        py::handle(given).cast<std::tuple<py::dict, int64_t, py::tuple, bool, size_t, py::tuple, py::object>>();
    const auto read = read_fields(fields);
    if (!read) Py_RETURN_NONE;
    const CallFields& call = *read;
    const auto needs = find_needs(call.operands);
    if (!needs && !link.is_none()) Py_RETURN_NONE;
    const auto entry = entry_of(key_of(call, needs.value_or(0)), call.operands, multiprocessors, steps);
    entry->final = final;
    entry->hidden = hidden;
    for (const auto& each : adjoints) {
        size_t bits = 0, place = 0;
        for (const bool need : read_field<std::vector<bool>>(each, "needs")) bits |= size_t{need} << place++;
        entry->adjoints.push_back(std::make_shared<Adjoint>(Adjoint{
            bits, read_field<int64_t>(each, "number"), read_field<Numbers>(each, "saves"),
            held_attribute(each, "differentiate"), held_attribute(each, "begin")}));
    }
    if (!link.is_none()) {
        entry->owner = held(call.object(kGroup));
        entry->begin = held_attribute(link, "begin");
        entry->finish = held_attribute(link, "finish");
        if (*needs && entry->find_adjoint(*needs) == nullptr) Py_RETURN_NONE;
    }
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// register_gradient(number, tensors, multiprocessors, steps, gives); of the tensors None is undefined
PyObject* register_gradient(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    const auto [number, tensors, multiprocessors, steps, gives] =
        py::handle(given).cast<std::tuple<int64_t, py::tuple, int64_t, py::tuple, Numbers>>();
    Operands operands;
    for (const auto& each : tensors) {
        if (!each.is_none() && !THPVariable_Check(each.ptr())) throw py::type_error("what is no tensor");
        operands.push_back(each.is_none() ? at::Tensor() : THPVariable_Unpack(each.ptr()));
    }
    const auto entry = entry_of({-1, number}, operands, multiprocessors, steps);
    entry->gives = gives;
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* clear(PyObject*, PyObject*) {
    HANDLE_TH_ERRORS
    table().clear();
    traced().clear();
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// trace(object, key): a function, or an operator of the user's, whose trace follows from what the key holds
PyObject* trace(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *object, *key;
    if (!PyArg_ParseTuple(given, "OO!", &object, &PyTuple_Type, &key)) return nullptr;
    traced().put(object, key);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* size(PyObject*, PyObject*) { return PyLong_FromSize_t(table().size()); }

// begin(emulation, policy, failed, check_offsets, workspace, enter, abandon, stream): once, before anything else
PyObject* begin(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    auto& all = surroundings();
    long long stream;
    if (!PyArg_ParseTuple(
            given, "OOOOOOOL", &all.emulation, &all.policy, &all.failed, &all.check_offsets, &all.workspace, &all.enter,
            &all.abandon, &stream))
        return nullptr;
    for (PyObject* each :
         {all.emulation, all.policy, all.failed, all.check_offsets, all.workspace, all.enter, all.abandon})
        Py_INCREF(each);
    all.stream = reinterpret_cast<int (*)(int32_t, void**)>(stream);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// find_patch(name, overload, dispatch key): what install() takes, and takes effect until it is deleted.
PyObject* find_patch(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    const char *name, *overload, *key;
    if (!PyArg_ParseTuple(given, "sss", &name, &overload, &key)) return nullptr;
    return PyCapsule_New(new Patch(name, overload, key), nullptr, [](PyObject* capsule) {
        delete static_cast<Patch*>(PyCapsule_GetPointer(capsule, nullptr));
    });
    END_HANDLE_TH_ERRORS
}

// install(patch, fields, is functional, is recorded by autograd, small, sharded, blocks); `small` has the fields of Small
PyObject* install(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *patch, *fields, *small, *sharded, *blocks;
    int is_functional, is_recorded;
    if (!PyArg_ParseTuple(
            given, "OOppOOO", &patch, &fields, &is_functional, &is_recorded, &small, &sharded, &blocks))
        return nullptr;
    auto* const found = static_cast<Patch*>(PyCapsule_GetPointer(patch, nullptr));
    if (found == nullptr) return nullptr;
    const py::handle limits(small);
    const Small read{
        read_field<int64_t>(limits, "bytes"), read_field<int64_t>(limits, "row_items"),
        read_field<int64_t>(limits, "column_items"), read_field<int64_t>(limits, "single_bytes")};
    found->install(read_fields(fields).value(), is_functional, is_recorded, read, sharded, blocks);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// The names of the fields from one to another, for Python.
PyObject* field_names(size_t begin, size_t end) {
    py::tuple found(end - begin);
    for (size_t n = begin; n < end; ++n) found[n - begin] = py::str(kNames[n]);
    return found.release().ptr();
}

PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, nullptr},
    {"clear", clear, METH_NOARGS, nullptr},
    {"find_patch", find_patch, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"register_call", register_call, METH_VARARGS, nullptr},
    {"register_gradient", register_gradient, METH_VARARGS, nullptr},
    {"serve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(serve)), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"size", size, METH_NOARGS, nullptr},
    {"trace", trace, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "scanops_native", nullptr, -1, methods};

}  // namespace
}  // namespace scanops

// Of ScanArguments and of the functions that a kernel's library exports, as those answer: scanops/store/library.py asks.
extern "C" __attribute__((visibility("default"))) int scanops_abi() { return SCANOPS_ABI; }

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_scanops_native() {
    HANDLE_TH_ERRORS
    PyObject* const made = PyModule_Create(&scanops::definition);
    if (made == nullptr) return nullptr;
    const py::handle module(made);
    module.attr("OPERANDS") = py::reinterpret_steal<py::object>(scanops::field_names(0, scanops::kFurther));
    module.attr("OPTIONS") = py::reinterpret_steal<py::object>(scanops::field_names(scanops::kOptions, scanops::kMap));
    module.attr("MOST_FURTHER") = scanops::kMostFurther;
    return made;
    END_HANDLE_TH_ERRORS
}
