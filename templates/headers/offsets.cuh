// Segments by the offsets of their begins.
#pragma once

struct Segments {
    const Offset* begin;  // begins of the segments after the first, or of all of them and their end, ascending
    int count;
};
