//@ Rows
struct Rows {  // one row or several in global or shared memory, by operand and output
    Operands<ConstPointerTo> from;
    Outputs<PointerTo> to;
};

//@ advance
__device__ __forceinline__ Rows advance(Rows rows, long long items, long long results) {
    for_each_operand([&](auto, auto& from) { from += items; }, rows.from);
    for_each_output([&](auto& to) { to += results; }, rows.to);
    return rows;
}
