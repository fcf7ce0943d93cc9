"""All examples that need one process group or none: python examples."""

from __future__ import annotations

import sys

import advantages
import expert_positions
import monotonic_attention
import selective_state_space
import serving
import spline_flow
import survival
import volume_rendering
from training import main

MODELS = (selective_state_space, monotonic_attention, spline_flow)
SCRIPTS = (advantages, expert_positions, survival, volume_rendering)

if __name__ == "__main__":
    status = main([module.EXAMPLE for module in MODELS], scripts=[module.compare for module in SCRIPTS])
    sys.exit(max(status, serving.main()))
