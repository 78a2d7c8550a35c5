"""The reasons of a refusal are those of the contract."""

from __future__ import annotations

from sidecar.core.authority import Reason
from sidecar.web.problem import Refusal
from tests.support.api import contract


def test_every_reason_of_a_refusal_is_in_the_contract() -> None:
    schemas = contract()["components"]["schemas"]
    named, unanswered = schemas["Problem"]["properties"]["reason"]["anyOf"]
    assert unanswered == {"$ref": "#/components/schemas/Unanswered"}
    assert set(named["enum"]) == {refusal.value for refusal in Refusal}
    assert set(schemas["Unanswered"]["enum"]) == {reason.value for reason in Reason}
