"""A built wheel carries the SQL files, and finds them when it is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sidecar import sql

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return zipfile.Path(built)


def names(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def test_every_sql_file_is_in_the_wheel(wheel: zipfile.Path) -> None:
    here = {path.relative_to(ROOT / "migrations") for path in (ROOT / "migrations").rglob("*.sql")}
    assert here
    assert {f"sidecar/migrations/{path}" for path in here} <= names(wheel)


def test_the_server_starter_and_the_recordings_are_in_the_wheel(wheel: zipfile.Path) -> None:
    data = {f"sidecar/demo/data/{path.name}" for path in (ROOT / "sidecar/demo/data").iterdir()}
    assert {"sidecar/demo/launch.py", *data} <= names(wheel)


def test_the_templates_and_what_the_pages_load_are_in_the_wheel(wheel: zipfile.Path) -> None:
    web = ROOT / "sidecar" / "web"
    files = {path.relative_to(ROOT).as_posix() for path in web.rglob("*") if path.suffix in _SHOWN}
    assert (
        {"sidecar/web/templates/overview.html", "sidecar/web/static/page.css", "sidecar/web/static/live.js"}
        <= files
        <= names(wheel)
    )


_SHOWN = {".html", ".css", ".js", ".svg"}


def test_the_contract_of_the_api_is_in_the_wheel(wheel: zipfile.Path) -> None:
    text = (wheel / "sidecar" / "web" / "openapi.yaml").read_text("utf-8")
    assert text == (ROOT / "docs" / "openapi.yaml").read_text("utf-8")


def test_an_installed_wheel_finds_its_files(wheel: zipfile.Path, tmp_path: Path) -> None:
    # Not wheel.root itself: before 3.11.4 it extracts folders that are only implied.
    with zipfile.ZipFile(str(wheel.root.filename)) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from sidecar import sql;"
        "print(sql.folder()); print(*(f.name for g in ('noetl', 'postgres') for f in sql.scripts(g)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    folder, found = done.stdout.splitlines()
    assert folder == str(tmp_path / "sidecar" / "migrations")
    assert found.split() == [file.name for group in ("noetl", "postgres") for file in sql.scripts(group)]
