"""Logs: one line an event, ids as text, nothing that must not be logged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.settings import Settings
from sidecar.telemetry import logs
from sidecar.telemetry.metrics import Metrics
from sidecar.telemetry.startup import announce


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure(form="json", stream=stream)
    yield stream
    logs.configure()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_ids_are_text_because_json_numbers_lose_digits(out: io.StringIO) -> None:
    logs.get("feed").info("held", execution_id=2**62 + 1)
    assert lines(out)[0]["execution_id"] == str(2**62 + 1)


def test_secrets_and_payloads_are_withheld(out: io.StringIO) -> None:
    logs.get("feed").info("x", body='{"a":1}', dsn="d", detail="no answer from postgresql://u:hunter2@h/d?x")
    logging.getLogger("uvicorn.error").warning("cannot reach %s", "postgresql://u:hunter2@h/d")
    assert "hunter2" not in out.getvalue()
    assert '"a"' not in out.getvalue()
    assert len(lines(out)) == 2


def test_configuring_twice_does_not_double_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(form="json", stream=first)
    logs.configure(form="json", stream=second)
    logging.getLogger("other").warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1
    logs.configure()


def test_the_level_holds_back_what_is_below() -> None:
    stream = io.StringIO()
    logs.configure("warning", "json", stream)
    logs.get("x").info("quiet")
    logs.get("x").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]
    logs.configure()


def test_i54_partial_arming_and_unrecognised_gates_are_warned_of_once(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_CHAIN_TICKS", "5")
    announce(Settings.given(populate="on", compare="maybe"), logs.get("app"), Metrics())
    warned = [line for line in lines(out) if line["level"] == "warning"]
    assert [(line["event"], line.get("variable") or line.get("state")) for line in warned] == [
        ("gate", "NOETL_CHAIN_COMPARE"),
        ("arming", "partial"),
        ("setting_without_effect", "NOETL_CHAIN_TICKS"),
    ]
    assert sum(line["event"] == "gate" for line in lines(out)) == 6
