"""What the store's PostgreSQL may say, and what becomes of it: paused, refused, damaged, ended."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

import asyncpg
import pytest

from sidecar.errors import (
    ConfigError,
    Invalid,
    InvariantError,
    SidecarError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFenced,
    StoreFull,
)
from sidecar.source.connection import Session
from sidecar.store.postgres.connection import STATEMENT_S, connect
from sidecar.store.postgres.failure import postgres_errors
from sidecar.store.postgres.url import Place

PAUSED: Final = (
    "08000 08001 08003 08004 08006 08007 08P01"  # no connection, or one that is no use any more
    " 0A000 25006"  # the server became a standby
    " 25P03 25P04 40001 40002 40003 40P01 55P03 57014 57P01 57P02 57P03 57P05"
    " 53000 53200 53300 53400 58000 58030 HV000 HV00N"
)
ENDED: Final = "28000 28P01 42501 3D000 25P01 25P02 26000 34000 42601 54000 55000 XX000"
DAMAGED: Final = "XX001 XX002 42P01 42703 42883 3F000"
REFUSED: Final = "22001 22003 22021 22P02 23502 23505 23514"


def raised(error: BaseException) -> SidecarError:
    with pytest.raises(SidecarError) as found, postgres_errors():
        raise error
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__
    return found.value


@pytest.mark.parametrize(
    ("states", "kind", "retryable"),
    [
        (PAUSED, StoreBusy, True),
        (ENDED, StoreError, False),
        (DAMAGED, StoreCorrupt, False),
        (REFUSED, Invalid, False),
        ("53100", StoreFull, True),
        ("NC001", StoreFenced, False),
    ],
)
def test_a_sqlstate_has_one_consequence(states: str, kind: type[StoreError], retryable: bool) -> None:
    for state in states.split():
        error = raised(stated(state))
        assert type(error) is kind, state
        assert error.retryable is retryable, state
        assert error.exit_code == 20, state
        assert "s3cret" not in str(error) + error.hint, state


def stated(state: str) -> asyncpg.PostgresError:
    """As the driver makes it of the server's message."""
    text = "process 1 on h" if state == "NC001" else "s3cret of 10.0.0.9"
    made = asyncpg.PostgresError.new({"C": state, "M": text, "S": "ERROR"})
    assert isinstance(made, asyncpg.PostgresError)
    return made


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionRefusedError(111, "10.0.0.9"),
        ConnectionResetError(104, "10.0.0.9"),
        BrokenPipeError(32, "10.0.0.9"),
        OSError(113, "no route to 10.0.0.9"),
        TimeoutError(),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.InternalClientError("got result for unknown protocol state 3"),
        asyncpg.TargetServerAttributeNotMatched("10.0.0.9"),
        ssl.SSLError("10.0.0.9"),
        ssl.SSLCertVerificationError("10.0.0.9"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_the_network_and_the_driver_raise_pauses(failure: BaseException) -> None:
    error = raised(failure)
    assert type(error) is StoreBusy
    assert "10.0.0.9" not in str(error) + error.hint


def test_a_value_is_refused_and_not_repeated() -> None:
    for failure in (ValueError("s3cret"), OverflowError("s3cret"), UnicodeError("s3cret")):
        error = raised(failure)
        assert type(error) is Invalid
        assert "s3cret" not in str(error)


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), KeyboardInterrupt(), InvariantError("ours")])
def test_what_is_nobodys_failure_passes(failure: BaseException) -> None:
    with pytest.raises(type(failure)), postgres_errors():
        raise failure


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ssl.SSLCertVerificationError(1, "expired"), StoreBusy),
        (asyncpg.ClientConfigurationError("invalid port s3cret"), ConfigError),
        (ValueError("invalid literal for int() with base 10: 's3cret'"), ConfigError),
        (stated("28P01"), StoreError),
        (stated("57P03"), StoreBusy),
        (TimeoutError(), StoreBusy),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_connection_that_does_not_come_about(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type[SidecarError]
) -> None:
    given = dict[str, Any]()

    async def fails(dsn: str, **options: Any) -> None:
        given.update(options)
        raise failure

    monkeypatch.setattr(asyncpg, "connect", fails)
    with pytest.raises(SidecarError) as refused:
        await connect(Place("postgresql://u:s3cret@h/d"))
    assert type(refused.value) is kind
    assert "s3cret" not in str(refused.value) + refused.value.hint
    # What is asked without a deadline of its own, the layout for example, has this one.
    assert given["command_timeout"] >= STATEMENT_S
    if kind is StoreBusy:
        with pytest.raises(SidecarError) as away:
            async with Session("postgresql://u:s3cret@h/d", query_timeout_s=1).transaction():
                pass
        assert away.value.exit_code == 10
        assert away.value.retryable
