// What Python has registered of calls that it has served; to look a call up, make room for its results and launch.
#pragma once

#include "call.h"

#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <unordered_map>

namespace scanops {

constexpr size_t kMostArguments = 4096;  // bytes of ScanArguments; launch_of() checks
constexpr size_t kMostParameters = 32;   // of a kernel; likewise

struct Output {
    int64_t offset;  // of its pointer in the arguments
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    int64_t skip;  // bytes of it before what the kernel writes first
};

struct Read {
    int64_t place;   // among the operands, behind which come the results of the steps before; -1: nothing
    int64_t offset;  // of its pointer in the arguments
    int64_t skip;    // bytes of it that the kernel does not read
};

// A kernel, and the numbers of its launch.
struct Kernel {
    void* handle;  // null: that of the library whose function launches it
    unsigned blocks, threads, shared_bytes;
    std::vector<int64_t> parameters;  // offset of each in the arguments
};

using LaunchKernel = int (*)(  // cuLaunchKernel, or scanops_launch of a library
    void* kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared_bytes,
    void* stream, void** parameters, void** extra);

// What cuLaunchKernelEx takes, as cuda.h has it: CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id, padding;
    int value[16];
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};
using LaunchKernelEx = int (*)(const LaunchConfig*, void* kernel, void** parameters, void** extra);
constexpr int kProgrammaticStreamSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

// A launch, or what PyTorch's operators compute around launches.
struct Step {
    std::vector<Read> reads;
    PyObject* compute = nullptr;  // Python's, of tensors in a tuple: the results; null for a launch, which has the rest
    std::vector<char> arguments;  // ScanArguments without pointers
    std::vector<Output> outputs;
    LaunchKernel function = nullptr;
    LaunchKernelEx early = nullptr;  // of a kernel that may begin before those ahead of it have ended, in its place
    Kernel kernel;
    void (*configure)(unsigned long long seed, int multiprocessors) = nullptr;  // of an emulated kernel, else null
    int64_t workspace_offset = 0, workspace_bytes = 0;  // of its pointer in the arguments; 0 bytes: it has none
    PyObject* launcher = nullptr;  // Python's; Entry.owned keeps it, and `compute`
    // Of a kernel with a link to other ranks: whether one of them was lost, then the stream of the link's last launch.
    // The first is memory of the host that a GPU writes. Null: it has no link.
    const volatile uint64_t* link = nullptr;

    // Queue it; returns an error code.
    int operator()(char* given, void* stream) const {
        std::array<void*, kMostParameters> addresses;
        for (size_t n = 0; n < kernel.parameters.size(); ++n) addresses[n] = given + kernel.parameters[n];
        if (early != nullptr) {
            LaunchAttribute attribute = {kProgrammaticStreamSerialization, 0, {1}};
            const LaunchConfig config = {
                {kernel.blocks, 1, 1}, {kernel.threads, 1, 1}, kernel.shared_bytes, stream, &attribute, 1};
            return early(&config, kernel.handle, addresses.data(), nullptr);
        }
        return function(
            kernel.handle, kernel.blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, stream, addresses.data(),
            nullptr);
    }
};

// What is asked of the gradient, where that of some inputs is wanted.
struct Adjoint {
    size_t needs;      // the operands that it is wanted of: bits as find_needs() has them
    int64_t number;    // what its passes are known by
    std::vector<int64_t> saves;  // the places, among operands and then results, of what it reads; -1: nothing
    Reference python;  // (policy, tensors) -> gradients; of a linked call (policy, tensors, entered, noted)
    Reference begin;   // of a linked call: (policy, noted, gradients of result and carry-out) -> both, or None for these
};

// Offsets whose values Python has checked: the tensor, its version and its address. Values in the memory of a CPU are
// checked at every call.
class KnownOffsets {
 public:
    bool holds(const at::Tensor& offsets) const {
        return impl_ == offsets.unsafeGetTensorImpl() && !tensor_.expired() && version_ == offsets._version() &&
               address_ == offsets.const_data_ptr();
    }
    void keep(const at::Tensor& offsets) {
        if (!offsets.is_cuda() || offsets.is_inference()) return;
        impl_ = offsets.unsafeGetTensorImpl();
        tensor_ = c10::weak_intrusive_ptr<c10::TensorImpl>(offsets.getIntrusivePtr());
        version_ = offsets._version();
        address_ = offsets.const_data_ptr();
    }

 private:
    c10::TensorImpl* impl_ = nullptr;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor_{c10::intrusive_ptr<c10::TensorImpl>()};
    int64_t version_ = 0;
    const void* address_ = nullptr;
};

struct Entry {
    Key key;
    std::vector<Step> steps;
    bool final = false;  // whether the last result is the carry-out
    size_t hidden = 0;   // results before it that gradients alone read
    std::vector<std::shared_ptr<const Adjoint>> adjoints;  // those that C++ may be asked for
    std::vector<int64_t> gives;  // of a gradient: which result that of each operand is, or -1
    Reference owned;             // keeps what steps point to, and the libraries loaded
    mutable KnownOffsets offsets;  // of the call before; needs the interpreter's lock
    Reference owner;               // of a linked call: the object that its key is of
    Reference begin;   // likewise: () -> what its backward pass is to know; called before a launch
    Reference finish;  // likewise, or null: (results) -> (results, the carry-in that has entered or None), after it

    // What is asked of the gradient where that of these operands is wanted; null: Python is to serve.
    std::shared_ptr<const Adjoint> find_adjoint(size_t needs) const {
        for (const auto& each : adjoints)
            if (each->needs == needs) return each;
        return nullptr;
    }
};

// A backward pass looks up without the interpreter's lock, hence one of the table's own.
class Table {
 public:
    std::shared_ptr<const Entry> find(const Key& key) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = entries_.find(digest(key));
        return found != entries_.end() && found->second->key == key ? found->second : nullptr;
    }
    void put(std::shared_ptr<const Entry> entry) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::swap(entries_[digest(entry->key)], entry);  // what was there goes when the lock is free again
    }
    void clear() {
        std::unordered_map<uint64_t, std::shared_ptr<const Entry>> gone;
        const std::lock_guard<std::mutex> lock(mutex_);
        gone.swap(entries_);
    }
    size_t size() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return entries_.size();
    }

 private:
    static uint64_t digest(const Key& key) {
        uint64_t total = key.size(), weight = 1;
        for (const int64_t each : key) {  // products that do not wait for one another
            weight *= 0x9E3779B97F4A7C15ull;
            total += static_cast<uint64_t>(each) * weight;
        }
        return total ^ total >> 32;
    }

    mutable std::mutex mutex_;
    std::unordered_map<uint64_t, std::shared_ptr<const Entry>> entries_;  // keys of one digest: the latest
};

inline Table& table() {
    static Table* const only = new Table;  // never destroyed, as the interpreter may be gone by then
    return *only;
}

// What Python gives once, when the module is loaded.
struct Surroundings {
    PyObject* emulation = nullptr;  // the ContextVar
    PyObject* policy = nullptr;     // likewise
    PyObject* failed = nullptr;     // (launcher, code, again, device, stream): raises, or the launch is made again
    PyObject* check_offsets = nullptr;  // (op, dim, offsets, x): raises for offsets that are none
    PyObject* workspace = nullptr;  // (launcher, device, stream): a tensor; the device of a CPU is -1
    PyObject* enter = nullptr;      // (launcher): before a launch with a link whose words have changed
    PyObject* abandon = nullptr;    // (launcher): after one that failed, for which other ranks wait
    int (*stream)(int32_t device, void** stream) = nullptr;  // torch's own; null where this torch has no CUDA
};

inline Surroundings& surroundings() {
    static Surroundings all;
    return all;
}

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

struct LookUpResult {
    std::shared_ptr<const Entry> entry;  // null: Python is to serve
    Emulation emulation;
};

// A tensor that is there, on the device of all. Of a backward pass the gradient of some results may not be.
inline const at::Tensor& first_of(const Operands& operands) {
    return *std::find_if(operands.begin(), operands.end(), [](const auto& each) { return each.defined(); });
}

// `key` holds the options, or which gradient it is. CPU tensors are read by emulated kernels alone, whose grid follows
// from the emulation.
inline LookUpResult look_up(Key key, const Operands& operands) {
    if (watched()) return {};
    LookUpResult found;
    if (first_of(operands).is_cpu()) {
        const py::gil_scoped_acquire locked;
        const auto active = emulation();
        if (!active) return {};
        found.emulation = *active;
    } else if (surroundings().stream == nullptr) {
        return {};
    }
    append_rest(key, operands, found.emulation.multiprocessors);
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

// The workspace of a launch on a stream, to be kept until the launch is queued.
inline at::Tensor workspace(const Step& step, int device, void* stream) {
    const py::gil_scoped_acquire locked;
    const auto found = py::reinterpret_steal<py::object>(PyObject_CallFunction(
        surroundings().workspace, "OiK", step.launcher, device, reinterpret_cast<unsigned long long>(stream)));
    if (!found) raise();
    return THPVariable_Unpack(found.ptr());
}

// Let a launch with a link follow the last one. Raises where a rank was lost.
inline void enter(const Step& step, void* stream) {
    if (step.link == nullptr || (step.link[0] == 0 && step.link[1] == reinterpret_cast<uint64_t>(stream))) return;
    const py::gil_scoped_acquire locked;
    PyObject* const answer = PyObject_CallOneArg(surroundings().enter, step.launcher);
    if (answer == nullptr) raise();
    Py_DECREF(answer);
}

inline py::object wrapped(const at::Tensor& tensor) {
    if (!tensor.defined()) return py::none();
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

inline at::Tensor unwrapped(PyObject* object) { return object == Py_None ? at::Tensor() : THPVariable_Unpack(object); }

// Run a step that PyTorch's operators compute, and append its results.
inline void run_operators(const Step& step, const Operands& operands, Results& results) {
    const py::gil_scoped_acquire locked;
    py::tuple read(step.reads.size());
    const auto given = static_cast<int64_t>(operands.size());
    for (size_t n = 0; n < read.size(); ++n) {
        const int64_t place = step.reads[n].place;
        read[n] = place < 0 ? py::none() : wrapped(place < given ? operands[place] : results[place - given]);
    }
    const auto found = py::reinterpret_steal<py::object>(PyObject_CallOneArg(step.compute, read.ptr()));
    if (!found) raise();
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(found.ptr()); ++n)
        results.push_back(unwrapped(PyTuple_GET_ITEM(found.ptr(), n)));
}

// Queue the kernels on the current stream of the operands' device, and append their results. Needs no lock. Raises what
// Python has for a launch that fails.
inline void queue(const LookUpResult& found, const Operands& operands, Results& results) {
    const at::Tensor& x = first_of(operands);
    const c10::DeviceGuard here(x.device());
    const int device = x.is_cpu() ? -1 : x.get_device();
    void* stream = nullptr;
    if (!x.is_cpu() && surroundings().stream(device, &stream) != 0)
        throw std::runtime_error("torch gives no current stream");
    for (const Step& step : found.entry->steps) {
        if (step.compute != nullptr) {
            run_operators(step, operands, results);
            continue;
        }
        alignas(kAlignment) char arguments[kMostArguments];
        std::memcpy(arguments, step.arguments.data(), step.arguments.size());
        auto point = [&](int64_t offset, const void* at) { std::memcpy(arguments + offset, &at, sizeof at); };
        const auto given = static_cast<int64_t>(operands.size());
        for (const auto& [place, offset, skip] : step.reads) {
            const at::Tensor& read = place < given ? operands[place] : results[place - given];
            point(offset, static_cast<const char*>(read.const_data_ptr()) + skip);
        }
        for (const auto& output : step.outputs) {
            results.push_back(allocated(output, x));
            point(output.offset, static_cast<char*>(results.back().mutable_data_ptr()) + output.skip);
        }
        at::Tensor memory;
        if (step.workspace_bytes > 0) {
            memory = workspace(step, device, stream);
            point(step.workspace_offset, memory.mutable_data_ptr());
        }
        enter(step, stream);
        if (step.configure != nullptr) step.configure(found.emulation.seed, found.emulation.multiprocessors);
        bool again = false;
        for (int code; (code = step(arguments, stream)) != 0; again = true) {
            const py::gil_scoped_acquire locked;
            PyObject* const answer = PyObject_CallFunction(
                surroundings().failed, "OiiiK", step.launcher, code, again, device,
                reinterpret_cast<unsigned long long>(stream));
            if (answer == nullptr) raise();
            Py_DECREF(answer);
        }
    }
}

// As `queue`; where it fails, kernels of other ranks wait for this one's no longer.
inline void launch(const LookUpResult& found, const Operands& operands, Results& results) {
    try {
        queue(found, operands, results);
    } catch (...) {
        const Step& first = found.entry->steps.front();
        if (first.link != nullptr) {
            const py::gil_scoped_acquire locked;
            PyObject* const answer = PyObject_CallOneArg(surroundings().abandon, first.launcher);
            if (answer == nullptr) PyErr_WriteUnraisable(first.launcher);
            Py_XDECREF(answer);
        }
        throw;
    }
}

}  // namespace scanops
