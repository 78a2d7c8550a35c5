"""Recordings: what travels with the program, whole executions, damaged files."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from sidecar.demo.copies import ROWS, Mint, copy, template
from sidecar.demo.recording import BUNDLED, Recording, bundled, load, only, whole
from sidecar.errors import ConfigError

SIZES = {
    "noetl-rust-clean": (11367, 10445, 231),
    "noetl-rust-restarts": (7659, 7087, 155),
    "noetl-rust-published": (12792, 1653, 214),
}


@pytest.fixture(scope="module")
def published() -> Recording:
    return bundled("noetl-rust-published")


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_recording_has_its_rows_transactions_and_verdicts(name: str) -> None:
    recording = bundled(name)
    assert (recording.rows, len(recording.transactions), len(recording.executions)) == SIZES[name]
    assert recording.verdicts is not None
    assert recording.verdicts.keys() == recording.executions
    assert [each.position for each in recording.transactions] == list(range(len(recording.transactions)))
    times = [each.committed_at for each in recording.transactions]
    assert times == sorted(times)
    assert all(each.opened_at <= each.committed_at for each in recording.transactions)


def test_whole_keeps_only_executions_that_end_in_time(published: Recording) -> None:
    cut = whole(published, 60)
    assert 0 < len(cut.executions) < len(published.executions)
    assert cut.span_s <= 60
    rows = {row for each in published.transactions for row in each.rows}
    kept = {row for each in cut.transactions for row in each.rows}
    executions = cut.executions
    assert kept == {row for row in rows if row.execution_id in executions}
    assert cut.verdicts is not None
    assert cut.verdicts.keys() == cut.executions
    bound = published.began_at + 60_000_000
    late = {
        row.execution_id for each in published.transactions if each.committed_at > bound for row in each.rows
    }
    assert late == published.executions - cut.executions
    some = min(late)
    assert only(published, [some]).ended_at > bound


def test_whole_of_everything_changes_nothing(published: Recording) -> None:
    assert whole(published, 10_000) == published


def test_whole_of_nothing_is_empty(published: Recording) -> None:
    cut = whole(published, 0)
    assert (cut.rows, cut.transactions, cut.span_s, cut.verdicts) == (0, (), 0.0, {})


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such"):
        load(tmp_path, "no-such")
    (tmp_path / "torn.events.jsonl.xz").write_bytes(b"\xfd7zXZ\x00torn")
    with pytest.raises(ConfigError, match="torn"):
        load(tmp_path, "torn")


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    event = '{"execution_id":1,"event_id":2,"ingest_time":"2026-01-01T00:00:00+00:00"}\n'
    commit = '{"execution_id":1,"event_id":3,"commit_seq":1,"commit_ts":"2026-01-01 00:00:00+00",'
    commit += '"row_in_txn":0,"rows_in_txn":1}\n'
    (tmp_path / "odd.events.jsonl.xz").write_bytes(lzma.compress(event.encode()))
    (tmp_path / "odd.commits.jsonl.xz").write_bytes(lzma.compress(commit.encode()))
    with pytest.raises(ConfigError, match="odd"):
        load(tmp_path, "odd")


def test_a_copy_is_a_clean_chain_of_fresh_ids(published: Recording) -> None:
    source = template(published)
    mint = Mint()
    rows = copy(source, mint)
    assert len(rows) == len(source) == ROWS
    ids = [row["event_id"] for row in rows]
    assert len({*ids, rows[0]["execution_id"]}) == ROWS + 1
    assert min(ids) > 2**53
    assert [row["prev_event_id"] for row in rows] == [None, *ids[:-1]]
    assert {row["execution_id"] for row in rows} == {rows[0]["execution_id"]}
    assert not {row["execution_id"] for row in rows} & published.executions
    assert all("created_at" not in row and row["event_type"] for row in rows)
