// The module: serve, learn, learn_gradient, clear. See scanops/runtime/native/__init__.py for who calls them.
#include "gradient.h"

#include <torch/csrc/Exceptions.h>

namespace scanops {
namespace {

// serve(tensors, out, *options): a tuple of results, or None where Python is to serve. The tensors are those of an
// Inputs, in its order; the options are the fields of a Call.
PyObject* serve(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (count < 2 || given[1] != Py_None) Py_RETURN_NONE;
    Operands operands;
    Key key;
    if (!append_options(key, given + 2, count - 2) || !read_operands(operands, given[0])) Py_RETURN_NONE;
    const Found found = look_up(std::move(key), operands);
    if (found.entry == nullptr) Py_RETURN_NONE;
    size_t needs = 0;
    if (at::GradMode::is_enabled()) {
        for (size_t n = 0; n < kNeeds; ++n)
            if (operands[n].defined() && operands[n].requires_grad()) needs |= size_t{1} << n;
        const bool hidden = c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
        if (needs && (found.entry->adjoints[needs] == nullptr || hidden)) Py_RETURN_NONE;
    }
    for (const auto& operand : operands)
        if (is_dual(operand)) Py_RETURN_NONE;
    Results results;
    Outcome outcome;
    {
        const py::gil_scoped_release unlocked;  // the device's queue may be full
        outcome = launch(found, operands, results);
    }
    if (outcome.failed) raise_failure(outcome);
    if (needs) record(*found.entry, needs, operands, results);
    auto tuple = py::tuple(results.size());
    for (size_t n = 0; n < results.size(); ++n)
        PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(n), THPVariable_Wrap(std::move(results[n])));
    return tuple.release().ptr();
    END_HANDLE_TH_ERRORS
}

template <class Value>
std::vector<Value> numbers(PyObject* tuple) {
    return py::handle(tuple).cast<std::vector<Value>>();
}

Key options_of(PyObject* tuple) {
    Key key;
    if (!PyTuple_Check(tuple)) throw py::type_error("no options");
    std::vector<PyObject*> options;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tuple); ++n) options.push_back(PyTuple_GET_ITEM(tuple, n));
    if (!append_options(key, options.data(), options.size(), /*learn=*/true)) throw py::type_error("unchecked options");
    return key;
}

// The tensors of a tuple, undefined for None. False where one is no plain tensor.
bool read_tensors(Operands& operands, PyObject* tuple) {
    for (const auto& each : py::handle(tuple).cast<py::tuple>()) {
        if (!each.is_none() && !THPVariable_Check(each.ptr())) return false;
        operands.push_back(each.is_none() ? at::Tensor() : THPVariable_Unpack(each.ptr()));
    }
    return true;
}

// A launch, of scanops.runtime.native's Launch: (template, reads, launcher).
Launch launch_of(PyObject* told) {
    PyObject *bytes, *offsets, *outputs, *reads, *launcher;
    long long run, configure;
    if (!PyArg_ParseTuple(told, "(SOOLL)OO", &bytes, &offsets, &outputs, &run, &configure, &reads, &launcher)) raise();
    if (PyBytes_GET_SIZE(bytes) > static_cast<Py_ssize_t>(kMostArguments))
        throw py::type_error("arguments that there is no room for");
    Launch launch;
    launch.arguments.assign(PyBytes_AS_STRING(bytes), PyBytes_AS_STRING(bytes) + PyBytes_GET_SIZE(bytes));
    const auto at = numbers<int64_t>(offsets);
    for (const auto& [which, place] : py::handle(reads).cast<std::vector<std::pair<int64_t, int64_t>>>())
        launch.reads.push_back({place, at.at(which)});
    for (const auto& each : py::handle(outputs).cast<py::tuple>()) {
        const auto output = each.cast<py::tuple>();
        const auto dtype = reinterpret_cast<THPDtype*>(output[2].ptr())->scalar_type;
        launch.outputs.push_back({output[0].cast<int64_t>(), numbers<int64_t>(output[1].ptr()), dtype});
    }
    launch.launch = reinterpret_cast<int (*)(const void*, void*)>(run);
    launch.configure = reinterpret_cast<void (*)(unsigned long long, int)>(configure);
    launch.launcher = launcher;
    return launch;
}

// `key` holds the options, or which gradient it is; `launches` is a tuple of what launch_of() reads.
std::shared_ptr<Entry> entry_of(Key key, const Operands& operands, long long multiprocessors, PyObject* launches) {
    auto entry = std::make_shared<Entry>();
    entry->launchers = Py_NewRef(launches);
    entry->key = std::move(key);
    append_surroundings(entry->key);
    entry->key.push_back(multiprocessors);
    for (const auto& operand : operands) append_operand(entry->key, operand);
    for (const auto& each : py::handle(launches).cast<py::tuple>()) entry->launches.push_back(launch_of(each.ptr()));
    return entry;
}

// learn(options, inputs, final, multiprocessors, launches, adjoints); of adjoints (needs, number, keeps, python)
PyObject* learn(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *options, *inputs, *launches, *adjoints;
    long long multiprocessors;
    int final = 0;
    if (!PyArg_ParseTuple(given, "OOpLOO", &options, &inputs, &final, &multiprocessors, &launches, &adjoints))
        return nullptr;
    Operands operands;
    if (!read_operands(operands, inputs)) throw py::type_error("tensors that are not read here");
    const auto entry = entry_of(options_of(options), operands, multiprocessors, launches);
    entry->final = final != 0;
    entry->adjoints.resize(size_t{1} << kNeeds);
    for (const auto& each : py::handle(adjoints).cast<py::tuple>()) {
        const auto told = each.cast<py::tuple>();
        const auto adjoint = std::make_shared<Adjoint>();
        adjoint->number = told[1].cast<int64_t>();
        adjoint->keeps = told[2].cast<int64_t>();
        adjoint->python = Py_NewRef(told[3].ptr());
        entry->adjoints.at(told[0].cast<size_t>()) = adjoint;
    }
    table().put(entry);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// learn_gradient(number, tensors, multiprocessors, launches, gives)
PyObject* learn_gradient(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *tensors, *launches, *gives;
    long long number, multiprocessors;
    if (!PyArg_ParseTuple(given, "LOLOO", &number, &tensors, &multiprocessors, &launches, &gives)) return nullptr;
    Operands operands;
    if (!read_tensors(operands, tensors)) throw py::type_error("tensors that are not read here");
    const auto entry = entry_of({-1, number}, operands, multiprocessors, launches);
    entry->gives = numbers<int64_t>(gives);
    if (entry->gives.size() != kNeeds) throw py::type_error("gradients that are not given here");
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

// begin(emulation, policy, failure, stream): once, before anything else
PyObject* begin(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    auto& all = surroundings();
    long long stream;
    if (!PyArg_ParseTuple(given, "OOOL", &all.emulation, &all.policy, &all.failure, &stream)) return nullptr;
    for (PyObject* each : {all.emulation, all.policy, all.failure}) Py_INCREF(each);
    all.stream = reinterpret_cast<int (*)(int32_t, void**)>(stream);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, nullptr},
    {"clear", clear, METH_NOARGS, nullptr},
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
