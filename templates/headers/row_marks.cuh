//@ Marks
struct Marks {  // bits of a warp's items at which segments begin
    unsigned word[kWarpItems / kWordBits + 1];
};
