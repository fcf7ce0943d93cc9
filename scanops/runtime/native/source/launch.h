// A call whose like was learnt: look it up, make room for its results, launch.
#pragma once

#include "table.h"

#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace scanops {

using Results = c10::SmallVector<at::Tensor, 4>;

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

// `key` holds the options, or which gradient it is. CPU tensors are read by emulated kernels alone, whose grid follows
// from the emulation.
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

struct Outcome {
    int code = 0;
    const Launch* failed = nullptr;
};

// Queue the kernels on the current stream of the operands' device, and append their results. Needs no lock.
inline Outcome launch(const Found& found, const Operands& operands, Results& results) {
    const at::Tensor& x = operands[0];
    const c10::DeviceGuard here(x.device());
    void* stream = nullptr;
    if (!x.is_cpu() && surroundings().stream(x.get_device(), &stream) != 0)
        throw std::runtime_error("torch gives no current stream");
    for (const Launch& step : found.entry->launches) {
        alignas(kAlignment) char arguments[kMostArguments];
        std::memcpy(arguments, step.arguments.data(), step.arguments.size());
        auto point = [&](int64_t offset, const void* at) { std::memcpy(arguments + offset, &at, sizeof at); };
        const auto given = static_cast<int64_t>(operands.size());
        for (const auto& [place, offset] : step.reads)
            point(offset, (place < given ? operands[place] : results[place - given]).const_data_ptr());
        for (const auto& output : step.outputs) {
            results.push_back(allocated(output, x));
            point(output.offset, results.back().mutable_data_ptr());
        }
        if (step.configure != nullptr) step.configure(found.emulation.seed, found.emulation.multiprocessors);
        const int code = step.launch(arguments, stream);
        if (code != 0) return {code, &step};
    }
    return {};
}

// Python's function for a launch that failed raises. Needs the interpreter's lock.
[[noreturn]] inline void raise_failure(const Outcome& outcome) {
    Py_XDECREF(PyObject_CallFunction(surroundings().failure, "Oi", outcome.failed->launcher, outcome.code));
    raise();
}

}  // namespace scanops
