// The state of a segmented scan.
#pragma once

struct State {  // operator state and segment bounds of a range
    unsegmented::State plain;
    int bounds;  // 1: a segment begins in the range, which hides older items; 2: one begins, or in reverse ends, at the
                 // newest
};
