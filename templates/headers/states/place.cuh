// Where a block of a scan with states works: some lines that are neighbours, and a part of their steps.
#pragma once

typedef long long Position;
inline constexpr int kOuterDims = 3;  // dimensions of lines beside the one that a block takes several lines of

// A tensor with the strides of its dimensions, in items; 0 along those that it is broadcast over.
template <class Item>
struct Operand {
    Item* data;
    Position outer[kOuterDims];
    Position line, step, state;
};

struct Sizes {
    Position size;  // neighbouring lines
    Position length;  // steps of a line
    Position outer[kOuterDims];
    Position parts;  // of a line, which different blocks scan
    Position part_steps;  // a multiple of kSaveSteps
};

struct Place {
    Position outer[kOuterDims];
    Position group;  // all of these as one number
    Position first_line, block_of_lines;
    int lines;  // of this block
    Position part, begin, end;  // steps
};

__device__ __forceinline__ Place find_place(const Sizes& sizes) {
    Place place;
    const Position blocks = (sizes.size + kBlockLines - 1) / kBlockLines;
    place.block_of_lines = blockIdx.x % blocks;
    place.first_line = place.block_of_lines * kBlockLines;
    place.lines = (int)min(sizes.size - place.first_line, (Position)kBlockLines);
    Position rest = blockIdx.x / blocks;
    place.part = rest % sizes.parts;
    rest /= sizes.parts;
    place.group = rest;
    for (int d = kOuterDims - 1; d > 0; --d) {
        place.outer[d] = rest % sizes.outer[d];
        rest /= sizes.outer[d];
    }
    place.outer[0] = rest;
    place.begin = place.part * sizes.part_steps;
    place.end = min(sizes.length, place.begin + sizes.part_steps);
    return place;
}

// The first line of a block in a tensor, at step 0.
template <class Item>
__device__ __forceinline__ Item* begin_of(const Operand<Item>& operand, const Place& place) {
    Position at = place.first_line * operand.line;
    for (int d = 0; d < kOuterDims; ++d) at += place.outer[d] * operand.outer[d];
    return operand.data + at;
}

// The first state of this thread's line in carries and saved states: [group, count, line, state], contiguous.
__device__ __forceinline__ Position state_at(const Sizes& sizes, const Place& place, Position count, Position number,
                                             int line, int state) {
    return ((place.group * count + number) * sizes.size + place.first_line + line) * kStates + state;
}
