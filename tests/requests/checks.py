"""What every error must have."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from scanops.errors import ScanopsError


def refused(kind: type[ScanopsError], call: Callable[[], object], *words: str) -> ScanopsError:
    """The error ``call`` raises: exactly of ``kind``, four parts, each word in the message, fit to be pickled."""
    with pytest.raises(ScanopsError) as caught:
        call()
    error = caught.value
    assert type(error) is kind
    parts = [str(part) for part in (error.asked, error.allowed, error.value, error.hint)]
    assert all(part.strip() for part in parts)
    assert all(part in str(error) for part in parts)
    for word in words:
        assert word in str(error.value), f"{word!r} is not in the offending value {error.value!r}"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) and again.hint == error.hint
    return error
