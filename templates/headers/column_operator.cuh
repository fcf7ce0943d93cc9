//@
// ---- the operator's functions, column by column; its conditions hold where they hold for every column
//@ combine
__device__ __forceinline__ States combine(const States& older, const States& newer) {
    return each_column([&](int c) { return combine(older.column[c], newer.column[c]); });
}

//@ append
__device__ __forceinline__ States append(const States& older, const States& newer) {
    return each_column([&](int c) { return append(older.column[c], newer.column[c]); });
}

//@ extend
__device__ __forceinline__ States extend(const States& older, const States& newer) {
    return each_column([&](int c) { return extend(older.column[c], newer.column[c]); });
}

//@ behind
__device__ __forceinline__ States behind(const States& older, const States& newer) {
    return each_column([&](int c) { return behind(older.column[c], newer.column[c]); });
}

//@ within
__device__ __forceinline__ States within(const States& older, const States& newer) {
    return each_column([&](int c) { return within(older.column[c], newer.column[c]); });
}

//@ regain
__device__ __forceinline__ States regain(const States& older, const States& newer) {
    return each_column([&](int c) { return regain(older.column[c], newer.column[c]); });
}

//@ lose
__device__ __forceinline__ States lose(const States& lost, const States& older, const States& newer) {
    return each_column([&](int c) { return lose(lost.column[c], older.column[c], newer.column[c]); });
}

//@ settle
__device__ __forceinline__ States settle(const States& s) {
    return each_column([&](int c) { return settle(s.column[c]); });
}

//@ holds
__device__ __forceinline__ bool holds(const States& s) {
    return every_column([&](int c) { return holds(s.column[c]); });
}

//@ is_right
__device__ __forceinline__ bool is_right(const States& s) {
    return every_column([&](int c) { return is_right(s.column[c]); });
}

//@ is_right_behind
__device__ __forceinline__ bool is_right_behind(const States& older, const States& newer) {
    return every_column([&](int c) { return is_right_behind(older.column[c], newer.column[c]); });
}

//@ is_quick
__device__ __forceinline__ bool is_quick(const States& first, const States& last) {
    return every_column([&](int c) { return is_quick(first.column[c], last.column[c]); });
}
