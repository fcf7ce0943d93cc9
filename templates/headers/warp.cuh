// Numbers of every GPU.
#pragma once

inline constexpr int kWarpThreads = 32;
inline constexpr int kWordBits = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;  // all threads of a warp
