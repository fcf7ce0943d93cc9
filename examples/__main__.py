"""All three examples: python examples."""

from __future__ import annotations

import sys

import monotonic_attention
import selective_state_space
import spline_flow
from training import main

if __name__ == "__main__":
    sys.exit(main([module.EXAMPLE for module in (selective_state_space, monotonic_attention, spline_flow)]))
