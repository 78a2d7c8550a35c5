"""How values are written on a page.  What is not known is a dash, never a zero."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def count(number: int) -> str:
    """A count with its thousands apart."""
    return f"{number:,}"


def percent(ratio: float | None) -> str:
    """A share; one that is not whole is never rounded to 100 %, nor one above nothing to 0."""
    if ratio is None:
        return "—"
    rounded = f"{ratio:.2%}"
    if rounded == "100.00%" and ratio < 1:
        return "> 99.99%"
    return "< 0.01%" if rounded == "0.00%" and ratio > 0 else rounded


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return "—"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def size(number: float | None) -> str:
    """Bytes."""
    if number is None:
        return "—"
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def when(micros: int | None) -> str:
    """Microseconds since 1970 in UTC."""
    if micros is None:
        return "—"
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{micros} µs"


def moment(text: str | None) -> str:
    """An ISO 8601 time in UTC, to the second."""
    return "—" if text is None else f"{text[:19].replace('T', ' ')} UTC"
