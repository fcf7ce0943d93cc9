// Functions of fused scans and operators of the user's, known by what they read when they were traced.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace scanops {

// Pass Python's error on, through C++ and through autograd's threads. Needs the interpreter's lock.
[[noreturn]] inline void raise() {
    python_error error;
    error.persist();
    throw error;  // NOLINT: by value, as torch does
}

// A reference to an object, dropped from whatever thread.
using Reference = std::shared_ptr<PyObject>;

inline Reference held(PyObject* object) {
    return Reference(Py_NewRef(object), [](PyObject* each) {
        const auto state = PyGILState_Ensure();
        Py_DECREF(each);
        PyGILState_Release(state);
    });
}

// Every function here needs the interpreter's lock.
class TracedFunctions {
 public:
    // The number of a function that reads what it read when it was traced, or of an operator.
    std::optional<int64_t> find(PyObject* object) const {
        const auto found = keys_.find(anchor(object));
        if (found == keys_.end()) return std::nullopt;
        for (const auto& [key, number] : found->second)
            if (reads(object, key.get())) return number;
        return std::nullopt;
    }

    // `key`: as scanops.fusion.trace_keys describes the object. It keeps the anchor alive.
    void put(PyObject* object, PyObject* key) {
        if (find(object)) return;
        auto& keys = keys_[anchor(object)];
        if (keys.size() >= kMostKeys) keys.erase(keys.begin());
        keys.emplace_back(held(key), next_++);
    }

    void clear() {
        std::unordered_map<PyObject*, Keys> gone;
        gone.swap(keys_);
    }

 private:
    static constexpr size_t kMostKeys = 8;  // of one code, which differ in constants

    // What stays the same where a function is made anew.
    static PyObject* anchor(PyObject* object) { return PyFunction_Check(object) ? PyFunction_GET_CODE(object) : object; }

    static PyObject* part(PyObject* key, Py_ssize_t n) { return PyTuple_GET_ITEM(key, n); }

    // Whether a value is what a key describes: its type, then what it is known by.
    static bool reads(PyObject* value, PyObject* key) {
        PyObject *const type = part(key, 0), *const known = part(key, 1);
        if (type == reinterpret_cast<PyObject*>(&PyFloat_Type)) {
            if (!PyFloat_CheckExact(value)) return false;
            const double number = PyFloat_AS_DOUBLE(value);
            return std::memcmp(&number, PyBytes_AS_STRING(known), sizeof number) == 0;
        }
        if (type == reinterpret_cast<PyObject*>(&PyTuple_Type)) {
            if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != PyTuple_GET_SIZE(known)) return false;
            for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(known); ++n)
                if (!reads(part(value, n), part(known, n))) return false;
            return true;
        }
        if (PyFunction_Check(value)) {
            PyObject* const attributes = reinterpret_cast<PyFunctionObject*>(value)->func_dict;
            if (attributes != nullptr && PyDict_GET_SIZE(attributes) != 0) return false;
            if (type == reinterpret_cast<PyObject*>(&PyFunction_Type)) return function_reads(value, key);
        }
        if (value == known) return is_traced_by_parts(key);
        const bool is_compared = (type == reinterpret_cast<PyObject*>(&PyLong_Type) && PyLong_CheckExact(value)) ||
                                 (type == reinterpret_cast<PyObject*>(&PyUnicode_Type) && PyUnicode_CheckExact(value));
        return is_compared && PyObject_RichCompareBool(value, known, Py_EQ) == 1;
    }

    // Of an operator: whether its functions read what they did; constants have none.
    static bool is_traced_by_parts(PyObject* key) {
        for (Py_ssize_t n = 2; n < PyTuple_GET_SIZE(key); ++n)
            if (!reads(part(part(key, n), 0), part(part(key, n), 1))) return false;
        return true;
    }

    // The key of a function: type, code, defaults, (name, cell or None, attributes, key of the value) of all it reads.
    static bool function_reads(PyObject* value, PyObject* key) {
        const auto* const function = reinterpret_cast<PyFunctionObject*>(value);
        if (function->func_code != part(key, 1) || function->func_kwdefaults != nullptr) return false;
        if (!reads(function->func_defaults == nullptr ? Py_None : function->func_defaults, part(key, 2))) return false;
        for (Py_ssize_t n = 3; n < PyTuple_GET_SIZE(key); ++n) {
            PyObject *const read = part(key, n), *const name = part(read, 0), *const cell = part(read, 1);
            PyObject* found;
            if (cell != Py_None) {
                found = PyCell_GET(PyTuple_GET_ITEM(function->func_closure, PyLong_AsSsize_t(cell)));
            } else {
                found = PyDict_GetItemWithError(function->func_globals, name);
                if (found == nullptr && !PyErr_Occurred())
                    found = PyDict_GetItemWithError(function->func_builtins, name);
            }
            auto item = py::reinterpret_borrow<py::object>(found);
            for (Py_ssize_t k = 0; item && k < PyTuple_GET_SIZE(part(read, 2)); ++k)
                if (PyModule_Check(item.ptr()))
                    item = py::reinterpret_steal<py::object>(PyObject_GetAttr(item.ptr(), part(part(read, 2), k)));
            if (!item) PyErr_Clear();  // Python says what is missing
            if (!item || !reads(item.ptr(), part(read, 3))) return false;
        }
        return true;
    }

    using Keys = std::vector<std::pair<Reference, int64_t>>;
    std::unordered_map<PyObject*, Keys> keys_;
    int64_t next_ = 0;
};

inline TracedFunctions& traced() {
    static TracedFunctions* const only = new TracedFunctions;  // never destroyed, as the interpreter may be gone by then
    return *only;
}

}  // namespace scanops
