"""`verify --report`: one page that stands alone, written whole or not at all."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sidecar.cli import entry
from sidecar.commands.backfill import backfilled
from sidecar.commands.report import Report, page, reporting
from sidecar.commands.verify import verification
from sidecar.comparator.findings import Verification
from sidecar.comparator.report import ControlReport
from sidecar.core.authority import StoredEvent
from sidecar.core.ports import ExecutionLog
from sidecar.core.rejoin import Join
from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import ConfigError, SourceUnavailable
from sidecar.settings import Settings
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row
from tests.support.rows import chain_rows, event_row

E = 7001
HOSTILE = "<script>alert(1)</script>\u202e"


class Elements(HTMLParser):
    """Every element of a page, and that each one is closed."""

    VOID = frozenset({"meta", "br", "input", "link", "circle", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


async def reported(pg: Database, place: Path, store: Path | None = None) -> str:
    settings = Settings.given(dsn=pg.dsn)
    with reporting(place) as report:
        assert report is not None
        url = None if store is None else f"sqlite:///{store}"
        found = await verification(settings, store_url=url, report=report)
        return _written(report, found)


def _written(report: Report, found: Verification) -> str:
    assert not report.place.exists()
    report.write(found, 1.5)
    return report.place.read_text("utf-8")


async def test_the_two_numbers_the_verdicts_and_each_finding_with_its_chain(
    pg: Database, tmp_path: Path
) -> None:
    await pg.insert(
        [
            *chain_rows(E, [1, 2, 3]),
            event_row(E + 1, 11),
            event_row(E + 1, 12),
            event_row(E + 2, 21),
            event_row(E + 2, 23, prev=22, event_type=HOSTILE),
        ]
    )
    text = await reported(pg, tmp_path / "out.html")
    told = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", text.partition("<body>")[2]))
    assert "Divergences 0" in told
    assert "33.33% 1 of 3 eligible executions" in told
    for label in ("match", "refused_multiple_roots", "refused_dangling_prev"):
        assert label in told
    assert "2 roots: 11, 12." in told
    assert "Event 22 is missing; 23 names it as predecessor." in told
    elements = Elements(text)
    assert elements.open == []
    assert elements.names.count("svg") == 2
    assert "script" not in elements.names


async def test_it_stands_alone_and_what_is_hostile_is_text(pg: Database, tmp_path: Path) -> None:
    await pg.insert([event_row(E, 1), event_row(E, 2, event_type=HOSTILE)])
    text = await reported(pg, tmp_path / "out.html")
    assert re.search(r'\b(?:src|href)="|url\(|@import|\son\w+="', text) is None
    assert "<script" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


async def test_against_a_store_the_drawing_shows_both_sides(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await pg.insert([*chain_rows(E, [1, 2]), *chain_rows(E + 1, [11, 12])])
    await backfilled(Settings.given(dsn=pg.dsn, store=str(store)))
    await add_foreign_row(store, E, 99, move_head=True)
    with closing(sqlite3.connect(store)) as raw:
        raw.execute("UPDATE event SET body = body || ' ' WHERE execution_id = ? AND exec_seq = 2", (E + 1,))
        raw.commit()
    text = await reported(pg, tmp_path / "out.html", store)
    assert "[store only]" in text
    assert "[payload differs]" in text
    assert '<dd class="big">2</dd>' in text


async def test_a_log_that_went_away_leaves_the_findings_without_drawings(tmp_path: Path) -> None:
    class Away:
        async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
            raise SourceUnavailable("the server went away")

    class Empty:
        async def chains(self, execution_ids: Sequence[int]) -> dict[int, tuple[StoredEvent, ...]]:
            return {}

        async def joins(self, execution_id: int) -> tuple[Join, ...]:
            return ()

    found = Verification("temporary")
    found.add([Judgement(E, Verdict.REFUSED_FORK, log_rows=3)])
    with reporting(tmp_path / "out.html") as report:
        assert report is not None
        await report.draw(found, Away(), Empty())
        text = _written(report, found)
    assert f'<span class="id">{E}</span>' in text
    assert "<svg" not in text


def test_a_failed_control_stands_in_front() -> None:
    found = Verification("temporary", controls=ControlReport({"payload": "it was not found"}))
    text = page(found, 1.0, {}, {})
    assert "Control payload failed:" in text
    assert "No execution was judged" in text


@pytest.mark.parametrize("place", ["absent/out.html", "folder", "file/out.html"])
def test_bad_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="report cannot be written") as refused, reporting(tmp_path / place):
        pytest.fail("the work began")
    assert (refused.value.exit_code, bool(refused.value.hint)) == (2, True)


def test_what_stood_there_stays_when_the_work_fails(tmp_path: Path) -> None:
    place = tmp_path / "out.html"
    place.write_text("before")
    with pytest.raises(SourceUnavailable), reporting(place):
        raise SourceUnavailable("gone")
    assert place.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["out.html"]


def test_the_command_writes_it_and_refuses_a_bad_place_with_2_before_it_connects(
    pg: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out.html"
    assert entry(["verify", "--dsn", pg.dsn, "--report", str(place)]) == 3
    assert "Nothing was eligible" in place.read_text()
    away = ["verify", "--dsn", "postgresql://nobody@127.0.0.1:1/none", "--report", str(tmp_path)]
    assert entry(away) == 2
    assert "give --report a file" in capsys.readouterr().err
