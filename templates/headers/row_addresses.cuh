// Where a thread reads and writes a row.
#pragma once

struct Row {  // addresses of a thread's first access of each operand and output
    Operands<ConstPointerTo> from;
    Outputs<PointerTo> to;
};

__device__ __forceinline__ Row row_of(const Operands<ConstPointerTo>& operands, const Outputs<PointerTo>& outputs,
                                      long long line, const RowPart& part, Position length, const Geometry& geometry) {
    Row row = {operands, outputs};
    for_each_operand(
        [&](auto layout, auto& from) { from = first_access(layout, from, line, part, items_in(length), geometry); },
        row.from);
    for_each_output([&](auto& to) { to = dense(to, line, part, length); }, row.to);
    return row;
}
