// How an operand lies in memory, as a type: functions branch on it with if constexpr.
#pragma once

enum LayoutFlags {
    kDense = 1,        // lies as the output
    kContiguous = 2,   // items of a line are adjacent, lines begin anywhere
    kMisaligned = 4,   // lines begin off the output's vector loads
    kFlat = 8,         // a warp copies its rows as one range
    kRepeated = 16,    // another operand once more, read further on
    kFirst = 32,       // the first operand that is read
    kAlongLine = 64,   // transposed: contiguous are the items of a line
    kPerStep = 128,    // one item for all columns of a thread
};

template <int flags, int geometry, int shift, int access = 1>
struct OperandLayout {
    static constexpr bool kIsDense = flags & kDense;
    static constexpr bool kInRows = flags & kContiguous;
    static constexpr bool kIsShifted = flags & kMisaligned;
    static constexpr bool kIsFlat = flags & kFlat;
    static constexpr bool kIsRepeated = flags & kRepeated;
    static constexpr bool kIsFirst = flags & kFirst;
    static constexpr bool kIsAlong = flags & kAlongLine;
    static constexpr bool kIsPerStep = flags & kPerStep;
    static constexpr int kGeometry = geometry;  // its place in Geometry
    static constexpr int kShift = shift;        // items by which it is read further on in scan order
    static constexpr int kAccess = access;      // transposed: items that a lane copies at once
};

template <class Item>
using PointerTo = Item*;

template <class Item>
using ConstPointerTo = const Item*;

