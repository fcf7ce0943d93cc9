// What was learnt of calls that Python has served: the launch, as good as done.
#pragma once

#include "call.h"

#include <memory>
#include <unordered_map>

namespace scanops {

constexpr size_t kMostArguments = 4096;  // bytes of ScanArguments; learn() checks

struct Output {
    int64_t offset;  // of its pointer in the arguments
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
};

struct Read {
    int64_t place;   // among the operands, behind which come the results of the launches before
    int64_t offset;  // of its pointer in the arguments
};

struct Launch {
    std::vector<char> arguments;  // ScanArguments without pointers
    std::vector<Read> reads;
    std::vector<Output> outputs;
    int (*launch)(const void* arguments, void* stream) = nullptr;
    void (*configure)(unsigned long long seed, int multiprocessors) = nullptr;  // of an emulated kernel, else null
    PyObject* launcher = nullptr;  // Python's; Entry.launchers keeps it
};

// Drop a reference from whatever thread.
inline void drop(PyObject* object) {
    const auto state = PyGILState_Ensure();
    Py_XDECREF(object);
    PyGILState_Release(state);
}

// What is asked of the gradient, where that of some inputs is wanted.
struct Adjoint {
    int64_t number = 0;   // what its passes are known by
    int64_t keeps = 0;    // bits of gradient.h's Kept
    PyObject* python = nullptr;  // (policy, tensors) -> gradients of kNeeds

    Adjoint() = default;
    Adjoint(const Adjoint&) = delete;
    Adjoint& operator=(const Adjoint&) = delete;
    ~Adjoint() { drop(python); }
};

struct Entry {
    Key key;
    std::vector<Launch> launches;
    bool final = false;  // whether the last result is the carry-out
    std::vector<std::shared_ptr<const Adjoint>> adjoints;  // by what needs a gradient, as bits; null: Python's
    std::vector<int64_t> gives;     // of a gradient: which result each of kNeeds is, or -1
    PyObject* launchers = nullptr;  // keep the libraries loaded

    Entry() = default;
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() { drop(launchers); }  // a backward pass that outlives a clear() ends in another thread
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
        uint64_t total = key.size();
        for (const int64_t each : key) {
            total = (total ^ static_cast<uint64_t>(each)) * 0x9E3779B97F4A7C15ull;
            total ^= total >> 29;
        }
        return total;
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
    PyObject* failure = nullptr;    // (launcher, code) -> exception
    int (*stream)(int32_t device, void** stream) = nullptr;  // torch's own; null where this torch has no CUDA
};

inline Surroundings& surroundings() {
    static Surroundings all;
    return all;
}

}  // namespace scanops
