"""The templates: whatever is put into them is escaped, and a name that is missing is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sidecar.inspection.drawn import visible
from sidecar.web.values import count, duration, moment, percent, size, when
from sidecar.web.words import tone, words

HERE: Final = Path(__file__).parent


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": count,
        "percent": percent,
        "duration": duration,
        "size": size,
        "when": when,
        "moment": moment,
        "words": words,
        "tone": tone,
        "visible": _visible,
    }
    return made


def _visible(text: str) -> str:
    return visible(text, most=400)


_TEMPLATES: Final = environment()


def render(template: str, **values: Any) -> str:
    """One page as text."""
    return _TEMPLATES.get_template(template).render(values)


def file(name: str) -> bytes:
    """One of the few files that the pages load."""
    return (HERE / "static" / name).read_bytes()


def style() -> Markup:
    """The style sheet, for a page that has to stand alone; it is ours and ends no element."""
    return Markup(file("page.css").decode())  # noqa: S704 - a file of ours
