"""What ``scanops doctor`` says of the native part of calls. Builds nothing and loads nothing."""

from __future__ import annotations

from scanops import environment
from scanops.diagnosis.finding import Finding
from scanops.errors import ScanopsError

__all__ = ["examined"]


def examined() -> Finding:
    """Which way a call goes that is like one before it."""
    name = "native calls"
    if not environment.native():
        summary = "switched off by SCANOPS_NATIVE: every call is served from Python"
        return Finding(name=name, status="missing", summary=summary, next="unset SCANOPS_NATIVE")
    try:
        from scanops.runtime.native import building  # needs torch

        request = building.request()
        found = building.found()
    except ScanopsError as problem:
        return Finding(name=name, status="missing", summary=str(problem.value), next=problem.hint)
    except (ImportError, OSError):
        return Finding(name=name, status="missing", summary="torch is needed to look", next="install torch")
    facts: dict[str, object] = {"library": request.name, "identity": request.identity}
    if found is None:
        summary = f"no {request.name} in store or packs: calls are served from Python, at some microseconds more each"
        following = (
            "python -m scanops.runtime.native, which takes half a minute; a program whose calls repeat does so itself"
        )
        return Finding(name=name, status="missing", summary=summary, next=following, facts=facts)
    facts["path"] = str(found.directory)
    return Finding(name=name, status="ok", summary=f"{found.directory}", facts=facts)
