// The module: serve, learn, learn_gradient, clear, patch. See scanops/runtime/native/__init__.py for who calls them.
#include "patch.h"

#include <torch/csrc/Exceptions.h>

namespace scanops {
namespace {

// serve(tensors, options): the result, a tuple of several, or None where Python is to serve. The tensors are those of an
// Inputs, in its order; the options are the fields of a Call.
PyObject* serve(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    Operands operands;
    Key key;
    if (count != 2 || !append_options(key, given[1]) || !read_operands(operands, given[0])) Py_RETURN_NONE;
    const Found found = look_up(std::move(key), operands);
    if (found.entry == nullptr) Py_RETURN_NONE;
    size_t needs = 0;
    if (at::GradMode::is_enabled()) {
        for (size_t n = 0; n < operands.size(); ++n) {
            if (!operands[n].defined() || !operands[n].requires_grad()) continue;
            if (n >= kNeeds) Py_RETURN_NONE;  // one more tensor of a fused scan
            needs |= size_t{1} << n;
        }
        const bool hidden = c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
        if (needs && (found.entry->adjoints[needs] == nullptr || hidden)) Py_RETURN_NONE;
    }
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
    auto tuple = py::tuple(results.size());
    for (size_t n = 0; n < results.size(); ++n)
        PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(n), THPVariable_Wrap(std::move(results[n])));
    return tuple.release().ptr();
    END_HANDLE_TH_ERRORS
}

using Numbers = std::vector<int64_t>;

// A launch, of scanops.runtime.native's Launch: (template, reads, launcher).
Launch launch_of(py::tuple told) {
    using Told = std::tuple<uintptr_t, unsigned, unsigned, unsigned, Numbers>;
    using Whole =
        std::tuple<std::string, Numbers, std::vector<py::tuple>, uintptr_t, uintptr_t, Told, std::pair<int64_t, int64_t>>;
    const auto [arguments, offsets, outputs, function, configure, kernel, workspace] = told[0].cast<Whole>();
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
        entry->adjoints.at(needs) = std::make_shared<Adjoint>(Adjoint{number, keeps, held(python.ptr())});
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

// begin(emulation, policy, failed, check_offsets, workspace, stream): once, before anything else
PyObject* begin(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    auto& all = surroundings();
    long long stream;
    if (!PyArg_ParseTuple(
            given, "OOOOOL", &all.emulation, &all.policy, &all.failed, &all.check_offsets, &all.workspace, &stream))
        return nullptr;
    for (PyObject* each : {all.emulation, all.policy, all.failed, all.check_offsets, all.workspace}) Py_INCREF(each);
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

// install(patch, options, is functional, is recorded by autograd, small, sharded); `small` has the fields of Small
PyObject* install(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *patch, *options, *sharded;
    int is_functional, is_recorded;
    long long bytes, row_items, column_items, single_bytes;
    if (!PyArg_ParseTuple(
            given, "OOpp(LLLL)O", &patch, &options, &is_functional, &is_recorded, &bytes, &row_items, &column_items,
            &single_bytes, &sharded))
        return nullptr;
    auto* const found = static_cast<Patch*>(PyCapsule_GetPointer(patch, nullptr));
    if (found == nullptr) return nullptr;
    found->install(options, is_functional, is_recorded, Small{bytes, row_items, column_items, single_bytes}, sharded);
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
    {"serve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(serve)), METH_FASTCALL, nullptr},
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
