// The module: serve, learn, learn_gradient, their likes for linked calls, clear, patch. See scanops/runtime/native/__init__.py for who calls them.
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

// serve(tensors, options): the result, a tuple of several, or None where Python is to serve. The tensors are those of an
// Inputs, in its order; the options are the fields of a Call.
PyObject* serve(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    Operands operands;
    Key key;
    if (count != 2 || !append_options(key, given[1]) || !read_operands(operands, given[0])) Py_RETURN_NONE;
    const Found found = look_up(std::move(key), operands);
    if (found.entry == nullptr) Py_RETURN_NONE;
    const auto found_needs = find_needs(operands);
    if (!found_needs) Py_RETURN_NONE;
    const size_t needs = *found_needs;
    if (needs && (found.entry->adjoints[needs] == nullptr || is_below_autograd())) Py_RETURN_NONE;
    for (const auto& operand : operands)
        if (is_dual(operand)) Py_RETURN_NONE;
    const at::Tensor& offsets = operands[kOffsets];  // the key has their shape, not their values
    if (offsets.defined() && (offsets.is_inference() || !found.entry->offsets.holds(offsets))) {
        PyObject* const inputs = given[0];
        PyObject* const answer = PyObject_CallFunctionObjArgs(
            surroundings().check_offsets, given[1], PyTuple_GET_ITEM(inputs, 4), PyTuple_GET_ITEM(inputs, 0), nullptr);
        if (answer == nullptr) raise();
        Py_DECREF(answer);
        found.entry->offsets.keep(offsets);
    }
    Results results;
    {
        const py::gil_scoped_release unlocked;  // the device's queue may be full
        launch(found, operands, results);
    }
    if (needs) record(*found.entry, needs, operands, results);
    if (results.size() == 1) return THPVariable_Wrap(std::move(results[0]));
    return tuple_of(results).release().ptr();
    END_HANDLE_TH_ERRORS
}

// Append what a linked call is known by before its operands: its options, the group of its ranks, and what needs a
// gradient, on which its message to them depends. False for options of other types.
bool append_linked(Key& key, PyObject* options, PyObject* group, size_t needs) {
    if (!append_options(key, options)) return false;
    append_object(key, group);
    key.push_back(static_cast<int64_t>(needs));
    return true;
}

// Let Python do what follows the launch of a linked call: it may replace the results.
at::Tensor finish(const Entry& entry, Results& results) {
    const at::AutoGradMode no_grad(false);
    const py::tuple told = tuple_of(results);
    const auto found = py::reinterpret_steal<py::object>(PyObject_CallOneArg(entry.finish.get(), told.ptr()));
    if (!found) raise();
    const auto [all, entered] = found.cast<std::pair<py::tuple, py::object>>();
    results.clear();
    for (const auto& each : all) results.push_back(THPVariable_Unpack(each.ptr()));
    return entered.is_none() ? at::Tensor() : THPVariable_Unpack(entered.ptr());
}

// serve_linked(tensors, options, group): a tuple of results, or None where Python is to serve. The options are what the
// call is known by, its group besides.
PyObject* serve_linked(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    Operands operands;
    Key key;
    if (count != 3 || !read_operands(operands, given[0])) Py_RETURN_NONE;
    const auto needs = find_needs(operands);
    if (!needs || !append_linked(key, given[1], given[2], *needs)) Py_RETURN_NONE;
    const Found found = look_up(std::move(key), operands);
    if (found.entry == nullptr || (*needs && is_below_autograd())) Py_RETURN_NONE;
    if (torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr) Py_RETURN_NONE;  // which Python refuses
    const Entry& entry = *found.entry;
    const auto noted = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(entry.begin.get()));
    if (!noted) raise();
    Results results;
    {
        const py::gil_scoped_release unlocked;  // the device's queue may be full, or an emulated kernel waits
        launch(found, operands, results);
    }
    const at::Tensor entered = entry.finish == nullptr ? at::Tensor() : finish(entry, results);
    if (*needs) record(entry, *needs, operands, results, {held(noted.ptr()), entered});
    return tuple_of(results).release().ptr();
    END_HANDLE_TH_ERRORS
}

using Numbers = std::vector<int64_t>;

// A launch, of scanops.runtime.native's Launch: (template, reads, launcher).
Launch launch_of(py::tuple told) {
    using Told = std::tuple<uintptr_t, unsigned, unsigned, unsigned, Numbers>;
    using Whole =
        std::tuple<std::string, Numbers, std::vector<py::tuple>, uintptr_t, uintptr_t, Told, std::pair<int64_t, int64_t>,
                   uintptr_t>;
    const auto [arguments, offsets, outputs, function, configure, kernel, workspace, link] = told[0].cast<Whole>();
    if (arguments.size() > kMostArguments) throw py::type_error("arguments that there is no room for");
    Launch launch;
    launch.arguments.assign(arguments.begin(), arguments.end());
    for (const auto& [which, place, skip] : told[1].cast<std::vector<std::tuple<int64_t, int64_t, int64_t>>>())
        launch.reads.push_back({place, offsets.at(which), skip});
    for (const auto& each : outputs) {
        const auto dtype = reinterpret_cast<THPDtype*>(each[2].ptr())->scalar_type;
        launch.outputs.push_back({each[0].cast<int64_t>(), each[1].cast<Numbers>(), dtype});
    }
    launch.function = reinterpret_cast<LaunchKernel>(function);
    const auto [handle, blocks, threads, shared_bytes, parameters] = kernel;
    if (parameters.size() > kMostParameters) throw py::type_error("parameters that there is no room for");
    launch.kernel = Kernel{reinterpret_cast<void*>(handle), blocks, threads, shared_bytes, parameters};
    launch.configure = reinterpret_cast<void (*)(unsigned long long, int)>(configure);
    std::tie(launch.workspace_offset, launch.workspace_bytes) = workspace;
    launch.launcher = told[2].ptr();
    launch.link = reinterpret_cast<const volatile uint64_t*>(link);
    return launch;
}

// `key` holds the options, or which gradient it is; `launches` is a tuple of what launch_of() reads.
std::shared_ptr<Entry> entry_of(Key key, const Operands& operands, int64_t multiprocessors, const py::tuple& launches) {
    auto entry = std::make_shared<Entry>();
    entry->launchers = held(launches.ptr());
    append_rest(key, operands, multiprocessors);
    entry->key = std::move(key);
    for (const auto& each : launches) entry->launches.push_back(launch_of(each.cast<py::tuple>()));
    return entry;
}

// learn(options, inputs, final, multiprocessors, launches, adjoints); of adjoints (needs, number, keeps, python)
PyObject* learn(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    using Told = std::vector<std::tuple<size_t, int64_t, int64_t, py::object>>;
    const auto [options, inputs, final, multiprocessors, launches, adjoints] =
        py::handle(given).cast<std::tuple<py::tuple, py::tuple, bool, int64_t, py::tuple, Told>>();
    Operands operands;
    Key key;
    if (!append_options(key, options.ptr()) || !read_operands(operands, inputs.ptr()))
        throw py::type_error("a call that is not read here");
    const auto entry = entry_of(std::move(key), operands, multiprocessors, launches);
    entry->final = final;
    entry->adjoints.resize(size_t{1} << kNeeds);
    for (const auto& [needs, number, keeps, python] : adjoints)
        entry->adjoints.at(needs) = std::make_shared<Adjoint>(Adjoint{number, keeps, held(python.ptr()), nullptr});
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// learn_linked(options, group, inputs, final, multiprocessors, launches, begin, finish, adjoint); `adjoint` is (number,
// keeps, python, begin), or None where no gradient is wanted
PyObject* learn_linked(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    using Told = std::tuple<int64_t, int64_t, py::object, py::object>;
    const auto [options, group, inputs, final, multiprocessors, launches, begin, finish, adjoint] =
        py::handle(given).cast<std::tuple<py::tuple, py::object, py::tuple, bool, int64_t, py::tuple, py::object, py::object,
                                          std::optional<Told>>>();
    Operands operands;
    if (!read_operands(operands, inputs.ptr())) Py_RETURN_NONE;
    const auto needs = find_needs(operands);
    Key key;
    if (!needs || bool(*needs) != adjoint.has_value() || !append_linked(key, options.ptr(), group.ptr(), *needs))
        Py_RETURN_NONE;
    const auto entry = entry_of(std::move(key), operands, multiprocessors, launches);
    entry->final = final;
    entry->owner = held(group.ptr());
    entry->begin = held(begin.ptr());
    if (!finish.is_none()) entry->finish = held(finish.ptr());
    entry->adjoints.resize(size_t{1} << kNeeds);
    if (adjoint) {
        const auto& [number, keeps, python, before] = *adjoint;
        entry->adjoints[*needs] =
            std::make_shared<Adjoint>(Adjoint{number, keeps, held(python.ptr()), held(before.ptr())});
    }
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// learn_gradient(number, tensors, multiprocessors, launches, gives); of the tensors None is undefined
PyObject* learn_gradient(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    const auto [number, tensors, multiprocessors, launches, gives] =
        py::handle(given).cast<std::tuple<int64_t, py::tuple, int64_t, py::tuple, Numbers>>();
    Operands operands;
    for (const auto& each : tensors) {
        if (!each.is_none() && !THPVariable_Check(each.ptr())) throw py::type_error("what is no tensor");
        operands.push_back(each.is_none() ? at::Tensor() : THPVariable_Unpack(each.ptr()));
    }
    const auto entry = entry_of({-1, number}, operands, multiprocessors, launches);
    entry->gives = gives;
    if (gives.size() != kNeeds) throw py::type_error("gradients that are not given here");
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* clear(PyObject*, PyObject*) {
    HANDLE_TH_ERRORS
    table().clear();
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

// install(patch, options, is functional, is recorded by autograd, small, sharded, blocks); `small` has the fields of Small
PyObject* install(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *patch, *options, *sharded, *blocks;
    int is_functional, is_recorded;
    long long bytes, row_items, column_items, single_bytes;
    if (!PyArg_ParseTuple(
            given, "OOpp(LLLL)OO", &patch, &options, &is_functional, &is_recorded, &bytes, &row_items, &column_items,
            &single_bytes, &sharded, &blocks))
        return nullptr;
    auto* const found = static_cast<Patch*>(PyCapsule_GetPointer(patch, nullptr));
    if (found == nullptr) return nullptr;
    const Small small{bytes, row_items, column_items, single_bytes};
    found->install(options, is_functional, is_recorded, small, sharded, blocks);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, nullptr},
    {"clear", clear, METH_NOARGS, nullptr},
    {"find_patch", find_patch, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"learn", learn, METH_VARARGS, nullptr},
    {"learn_gradient", learn_gradient, METH_VARARGS, nullptr},
    {"learn_linked", learn_linked, METH_VARARGS, nullptr},
    {"serve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(serve)), METH_FASTCALL, nullptr},
    {"serve_linked", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(serve_linked)), METH_FASTCALL, nullptr},
    {"size", size, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "scanops_native", nullptr, -1, methods};

}  // namespace
}  // namespace scanops

// Of ScanArguments and of the functions that a kernel's library exports, as those answer: scanops/store/library.py asks.
extern "C" __attribute__((visibility("default"))) int scanops_abi() { return SCANOPS_ABI; }

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_scanops_native() {
    return PyModule_Create(&scanops::definition);
}
