"""Attributes that are computed at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Computed = TypeVar("Computed")


class lazy(Generic[Computed]):
    """``functools.cached_property`` without a lock: two threads may compute the value, and get equal ones.

    Until Python 3.12, ``cached_property`` has a lock that all objects share. A forked child may find it held for ever.
    """

    def __init__(self, compute: Callable[[Any], Computed]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: object = None) -> Computed:
        if instance is None:
            return self  # type: ignore[return-value]
        # An entry of __dict__ is found before this descriptor at the next access.
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value
