"""`replace` for every record of the project: dataclasses and Structs.

Python 3.13 has it as `copy.replace`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(record: T, **changes: Any) -> T:
    """A copy of `record` with other values in some fields."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    changed: T = dataclasses.replace(record, **changes)  # type: ignore[type-var] # anything else raises
    return changed
