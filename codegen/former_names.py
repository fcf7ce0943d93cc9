"""Names of strategies and of plans' numbers in files that earlier versions wrote, which are read like the new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRATEGIES = {"wave": "persistent", "panels": "columns_lookback"}
NUMBERS = {"alone": "one_block_per_sm", "apart": "strided_columns"}


def translate_plan(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a tuning file or measured table with the present names of its strategy and numbers."""
    numbers = {NUMBERS.get(name, name): value for name, value in entry["plan"].items()}
    return {**entry, "strategy": STRATEGIES.get(entry["strategy"], entry["strategy"]), "plan": numbers}
