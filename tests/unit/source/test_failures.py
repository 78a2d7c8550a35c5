"""Driver failures by SQLSTATE and class; nothing of the connection shows in their text."""

from __future__ import annotations

import asyncpg
import pytest

from sidecar.errors import ConfigError, InvariantError, SourceContractError, SourceError, SourceUnavailable
from sidecar.source.connection import Session, from_sqlstate, translated
from sidecar.source.options import Shard
from sidecar.source.table import checked_schema


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("28P01", SourceError),
        ("28000", SourceError),
        ("3D000", SourceContractError),
        ("3F000", SourceContractError),
        ("42P01", SourceContractError),
        ("42703", SourceContractError),
        ("42501", SourceContractError),
        ("57014", SourceUnavailable),
        ("57P01", SourceUnavailable),
        ("57P03", SourceUnavailable),
        ("53300", SourceUnavailable),
        ("08006", SourceUnavailable),
        ("40001", SourceUnavailable),
        ("XX000", SourceUnavailable),
        ("42601", SourceError),
        ("", SourceError),
    ],
)
def test_a_sqlstate_has_one_meaning(state: str, kind: type[SourceError]) -> None:
    error = from_sqlstate(state)
    assert type(error) is kind
    assert error.hint


def test_states_an_operator_can_act_on_differ_in_text() -> None:
    states = ["28P01", "28000", "3D000", "3F000", "42P01", "42703", "42501", "57014"]
    assert len({str(from_sqlstate(state)) for state in states}) == len(states)


def test_the_servers_text_never_passes() -> None:
    with pytest.raises(SourceError) as caught, translated():
        raise asyncpg.InvalidPasswordError('password authentication failed for user "secret_user"')
    assert "secret_user" not in str(caught.value) + caught.value.hint
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "failure",
    [OSError(111, "10.1.2.3:5432"), TimeoutError(), asyncpg.InterfaceError("connection is closed")],
)
def test_a_broken_connection_may_be_tried_again(failure: BaseException) -> None:
    with pytest.raises(SourceUnavailable) as caught, translated():
        raise failure
    assert caught.value.retryable
    assert "10.1.2.3" not in str(caught.value)


def test_a_wrong_argument_is_our_bug() -> None:
    # The driver's own class for it has no public name.
    wrong_argument = type("DataError", (asyncpg.InterfaceError, ValueError), {})
    with pytest.raises(InvariantError), translated():
        raise wrong_argument("invalid input for query argument $1")


def test_a_session_does_not_show_its_dsn() -> None:
    assert "hunter2" not in repr(Session("postgresql://u:hunter2@h/d", query_timeout_s=1))


@pytest.mark.parametrize("schema", ['a"b', "", "1a", "a b", "x" * 64, "a;b", "a.b"])
def test_a_schema_that_is_no_identifier_is_refused(schema: str) -> None:
    with pytest.raises(ConfigError):
        checked_schema(schema)


def test_a_single_shard_filters_nothing_and_many_filter_in_postgres() -> None:
    assert Shard().filter_sql("e.execution_id") == ""
    assert "hashint8extended(e.execution_id, 0) % 3" in Shard(1, 3).filter_sql("e.execution_id")
    with pytest.raises(InvariantError):
        Shard(3, 3)
