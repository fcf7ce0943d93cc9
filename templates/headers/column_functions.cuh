// The operator's functions, column by column. Conditions hold where they hold for every column. Those that few operators
// have are templates, so that a kernel declares the ones that it calls.
#pragma once

// The states that a function gives for each column.
template <typename Of>
__device__ __forceinline__ States each_column(Of of) {
    States s;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) s.column[c] = of(c);
    return s;
}

// Whether a condition holds for every column.
template <typename Of>
__device__ __forceinline__ bool every_column(Of of) {
    bool all = true;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) all = all && of(c);
    return all;
}

__device__ __forceinline__ States identities() {
    return each_column([](int) { return identity(); });
}

__device__ __forceinline__ States empty_state() { return identities(); }

__device__ __forceinline__ States combine(const States& older, const States& newer) {
    return each_column([&](int c) { return combine(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> append(const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return append(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> extend(const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return extend(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> behind(const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return behind(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> within(const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return within(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> regain(const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return regain(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> lose(const Access<Of>& lost, const Access<Of>& older, const Access<Of>& newer) {
    return each_column([&](int c) { return lose(lost.column[c], older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ Access<Of> settle(const Access<Of>& s) {
    return each_column([&](int c) { return settle(s.column[c]); });
}

template <class Of>
__device__ __forceinline__ bool holds(const Access<Of>& s) {
    return every_column([&](int c) { return holds(s.column[c]); });
}

template <class Of>
__device__ __forceinline__ bool is_right(const Access<Of>& s) {
    return every_column([&](int c) { return is_right(s.column[c]); });
}

template <class Of>
__device__ __forceinline__ bool is_right_behind(const Access<Of>& older, const Access<Of>& newer) {
    return every_column([&](int c) { return is_right_behind(older.column[c], newer.column[c]); });
}

template <class Of>
__device__ __forceinline__ bool is_quick(const Access<Of>& first, const Access<Of>& last) {
    return every_column([&](int c) { return is_quick(first.column[c], last.column[c]); });
}

// The state of line c of a thread.
__device__ __forceinline__ State& line_state(States& s, int c) { return s.column[c]; }
__device__ __forceinline__ const State& line_state(const States& s, int c) { return s.column[c]; }
