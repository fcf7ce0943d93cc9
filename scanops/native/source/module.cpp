// The module: serve, learn, clear. See scanops/native/__init__.py for who calls them.
#include "gradient.h"

#include <torch/csrc/Exceptions.h>

#include <map>

namespace scanops {
namespace {

// serve(op, dim, tensors, reverse, exclusive, final, dtype, accumulate, out): a tuple of results, or None where Python
// is to serve. The tensors are those of an Inputs, in its order.
PyObject* serve(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (count != 9 || given[8] != Py_None) Py_RETURN_NONE;
    PyObject* const options[kOptions] = {given[0], given[1], given[3], given[4], given[5], given[6], given[7]};
    Operands operands;
    Key key;
    if (!append_options(key, options) || !read_operands(operands, given[2])) Py_RETURN_NONE;
    const Found found = look_up(std::move(key), operands);
    if (found.entry == nullptr) Py_RETURN_NONE;
    bool differentiable = false;
    if (at::GradMode::is_enabled()) {
        differentiable = operands[0].requires_grad();
        for (size_t n = 1; n < operands.size(); ++n)
            if (operands[n].defined() && operands[n].requires_grad()) Py_RETURN_NONE;
        const bool hidden = c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
        if (differentiable && (found.entry->adjoint == nullptr || hidden)) Py_RETURN_NONE;
    }
    for (const auto& operand : operands)
        if (is_dual(operand)) Py_RETURN_NONE;
    Results results;
    int code = 0;
    {
        const py::gil_scoped_release unlocked;  // the device's queue may be full
        code = launch(found, operands, results);
    }
    if (code != 0) raise_failure(*found.entry, code);
    if (differentiable) record(*found.entry, operands, results[0]);
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
    PyObject* options[kOptions];
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != kOptions) throw py::type_error("no options");
    for (size_t n = 0; n < kOptions; ++n) options[n] = PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(n));
    if (!append_options(key, options, /*learn=*/true)) throw py::type_error("options that are not checked");
    return key;
}

const Adjoint* adjoint_of(PyObject* options) {
    static auto* const all = new std::map<std::vector<int64_t>, Adjoint>;
    if (options == Py_None) return nullptr;
    const Key key = options_of(options);
    const auto [place, added] = all->try_emplace(std::vector<int64_t>(key.begin(), key.end()), Adjoint{key, options});
    if (added) Py_INCREF(options);
    return &place->second;
}

// learn(options, inputs, multiprocessors, arguments, reads, outputs, launch, configure, adjoint, launcher)
PyObject* learn(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    PyObject *options, *inputs, *bytes, *reads, *outputs, *adjoint, *launcher;
    long long multiprocessors, run, configure;
    if (!PyArg_ParseTuple(given, "OOLSOOLLOO", &options, &inputs, &multiprocessors, &bytes, &reads, &outputs, &run,
                          &configure, &adjoint, &launcher))
        return nullptr;
    Operands operands;
    if (!read_operands(operands, inputs) || PyBytes_GET_SIZE(bytes) > static_cast<Py_ssize_t>(kMostArguments))
        throw py::type_error("tensors or arguments that are not read here");
    const auto entry = std::make_shared<Entry>();
    entry->launcher = Py_NewRef(launcher);
    entry->key = options_of(options);
    append_surroundings(entry->key);
    entry->key.push_back(multiprocessors);
    for (const auto& operand : operands) append_operand(entry->key, operand);
    entry->arguments.assign(PyBytes_AS_STRING(bytes), PyBytes_AS_STRING(bytes) + PyBytes_GET_SIZE(bytes));
    entry->reads = numbers<int64_t>(reads);
    for (const auto& each : py::handle(outputs).cast<py::tuple>()) {
        const auto output = each.cast<py::tuple>();
        const auto dtype = reinterpret_cast<THPDtype*>(output[2].ptr())->scalar_type;
        entry->outputs.push_back({output[0].cast<int64_t>(), numbers<int64_t>(output[1].ptr()), dtype});
    }
    entry->launch = reinterpret_cast<int (*)(const void*, void*)>(run);
    entry->configure = reinterpret_cast<void (*)(unsigned long long, int)>(configure);
    entry->adjoint = adjoint_of(adjoint);
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

// begin(emulation, policy, backward, failure, stream): once, before anything else
PyObject* begin(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    auto& all = surroundings();
    long long stream;
    if (!PyArg_ParseTuple(given, "OOOOL", &all.emulation, &all.policy, &all.backward, &all.failure, &stream))
        return nullptr;
    for (PyObject* each : {all.emulation, all.policy, all.backward, all.failure}) Py_INCREF(each);
    all.stream = reinterpret_cast<int (*)(int32_t, void**)>(stream);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, nullptr},
    {"clear", clear, METH_NOARGS, nullptr},
    {"learn", learn, METH_VARARGS, nullptr},
    {"serve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(serve)), METH_FASTCALL, nullptr},
    {"size", size, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "scanops_native", nullptr, -1, methods};

}  // namespace
}  // namespace scanops

// Of ScanArguments and of the functions that a kernel's library exports, as those answer: scanops/library.py asks.
extern "C" __attribute__((visibility("default"))) int scanops_abi() { return 3; }

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_scanops_native() {
    return PyModule_Create(&scanops::definition);
}
