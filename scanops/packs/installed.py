"""Packs that are installed as wheels: distributions with an entry point in the group ``scanops.packs``."""

from __future__ import annotations

import functools
import importlib.util
import logging
from pathlib import Path

__all__ = ["GROUP", "SUBFOLDER", "installed"]

GROUP = "scanops.packs"
SUBFOLDER = "pack"  # of the package that the entry point names
_LOG = logging.getLogger("scanops")


@functools.cache
def installed() -> tuple[Path, ...]:
    """The folders of installed packs, by the names of their entry points. None of their code runs."""
    from importlib.metadata import entry_points  # 10 ms where torch has not imported it

    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        # A top-level module is found without being imported; one with a dot in its name is not.
        spec = None if "." in point.module else importlib.util.find_spec(point.module)
        places = list(spec.submodule_search_locations or ()) if spec else []
        roots = [Path(place) / SUBFOLDER for place in places if (Path(place) / SUBFOLDER).is_dir()]
        if not roots:
            _LOG.warning("the entry point %s = %s of group %s leads to no pack", point.name, point.value, GROUP)
        found += roots[:1]
    return tuple(dict.fromkeys(found))
