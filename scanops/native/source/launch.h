// A call whose like was learnt: look it up, make room for its results, launch.
#pragma once

#include "table.h"

#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace scanops {

using Results = c10::SmallVector<at::Tensor, 3>;

struct Emulation {
    unsigned long long seed = 0;
    int multiprocessors = 0;
};

// The emulation that this code runs in, none outside of all. Needs the interpreter's lock.
inline std::optional<Emulation> emulation() {
    PyObject* active = nullptr;
    if (PyContextVar_Get(surroundings().emulation, nullptr, &active) < 0) raise();
    if (active == nullptr || active == Py_None) {
        Py_XDECREF(active);
        return std::nullopt;
    }
    const auto held = py::reinterpret_steal<py::object>(active);
    return Emulation{held.attr("seed").cast<unsigned long long>(), held.attr("multiprocessors").cast<int>()};
}

struct Found {
    std::shared_ptr<const Entry> entry;  // null: Python is to serve
    Emulation emulation;
};

// `key` holds the options, or which gradient it is. CPU tensors are read by emulated kernels alone, whose grid follows from the emulation.
inline Found look_up(Key key, const Operands& operands) {
    if (watched()) return {};
    Found found;
    if (operands[0].is_cpu()) {
        const py::gil_scoped_acquire locked;
        const auto active = emulation();
        if (!active) return {};
        found.emulation = *active;
    } else if (surroundings().stream == nullptr) {
        return {};
    }
    append_surroundings(key);
    key.push_back(found.emulation.multiprocessors);
    for (const auto& operand : operands) append_operand(key, operand);
    found.entry = table().find(key);
    return found;
}

inline at::Tensor allocated(const Output& output, const at::Tensor& x) {
    // Straight to the device's own: nobody watches, and a result has no history yet.
    const auto where = x.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
    return at::_ops::empty_memory_format::redispatch(
        c10::DispatchKeySet(where),
        c10::fromIntArrayRefSlow(output.sizes),
        output.dtype,
        at::kStrided,
        x.device(),
        std::nullopt,
        std::nullopt);
}

// Queue the kernel on the current stream of the operands' device. Returns its error code. Needs no lock.
inline int launch(const Found& found, const Operands& operands, Results& results) {
    const Entry& entry = *found.entry;
    const at::Tensor& x = operands[0];
    alignas(kAlignment) char arguments[kMostArguments];
    std::memcpy(arguments, entry.arguments.data(), entry.arguments.size());
    auto point = [&](int64_t offset, const void* at) { std::memcpy(arguments + offset, &at, sizeof at); };
    for (const auto& read : entry.reads) point(read.offset, operands[read.place].const_data_ptr());
    const c10::DeviceGuard here(x.device());
    for (const auto& output : entry.outputs) {
        results.push_back(allocated(output, x));
        point(output.offset, results.back().mutable_data_ptr());
    }
    void* stream = nullptr;
    if (entry.configure != nullptr)
        entry.configure(found.emulation.seed, found.emulation.multiprocessors);
    else if (surroundings().stream(x.get_device(), &stream) != 0)
        throw std::runtime_error("torch gives no current stream");
    return entry.launch(arguments, stream);
}

// Python's function for a launch that failed raises. Needs the interpreter's lock.
[[noreturn]] inline void raise_failure(const Entry& entry, int code) {
    Py_XDECREF(PyObject_CallFunction(surroundings().failure, "Oi", entry.launcher, code));
    raise();
}

}  // namespace scanops
