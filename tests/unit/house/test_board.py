"""The routes of the API are those of its contract."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.board import Board
from sidecar.core.authority import Reason
from sidecar.settings import Settings
from sidecar.telemetry.health import Health
from sidecar.web.api import Refusal

CONTRACT = Path(__file__).resolve().parents[3] / "docs" / "openapi.yaml"


def test_every_route_is_in_the_contract_and_every_path_of_it_is_served() -> None:
    text = CONTRACT.read_text("utf-8")
    paths = set(re.findall(r"^  (/\S*):$", text, re.MULTILINE))
    assert {endpoint.path for endpoint in Board(Settings.given(), Health()).endpoints()} == paths


def test_every_reason_of_a_refusal_is_in_the_contract() -> None:
    text = CONTRACT.read_text("utf-8")
    (reasons,) = re.findall(r"reason:\n +enum: \[(.*)\]", text)
    told = {reason.strip() for reason in reasons.split(",")}
    assert told == {refusal.value for refusal in Refusal} | {reason.value for reason in Reason}
