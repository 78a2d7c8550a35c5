"""Every setting of the sidecar: name, default, unit, bound.

The environment is read once; the result is frozen.  A gate is on only when its text says so;
a number outside its bounds, or a text that is no number, stops the start and names the
variable.  Secrets are in no `repr` and in no message: an error names the variable, never its
content.  Source: spec 8.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from socket import gethostname
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar import credentials
from sidecar.core.due import SECOND, Windows
from sidecar.core.shards import Shard
from sidecar.errors import ConfigError
from sidecar.readings import (
    DEFAULT_API_BIND,
    DEFAULT_METRICS_BIND,
    PORT_MAX,
    Bind,
    File,
    Gate,
    Hours,
    Index,
    Int,
    OptionalBind,
    Ratio,
    Reading,
    Seconds,
    Secret,
    Text,
    bind,
    identifier,
    lower,
    patterns,
    peers,
    shard_of,
    slot_name,
    store_url,
    store_urls,
    tls_mode,
)

__all__ = [
    "DEFAULT_STORE",
    "GATES",
    "PREFIX",
    "Arming",
    "Bind",
    "Reading",
    "Settings",
    "load",
    "micros",
    "store_option",
    "unknown",
    "variable",
]

PREFIX: Final = "NOETL_CHAIN_"
REPLICAS_MAX: Final = 8
INVARIANT_H_MIN: Final = 1.0
INVARIANT_H_MAX: Final = 400 * 24.0
DEFAULT_STORE: Final = "sqlite:////data/noetl-chain/chain.db"


class Arming(StrEnum):
    """Whether the gates fit together."""

    OFF = "off"
    ARMED = "armed"
    PARTIAL = "partial"


def _var(name: str, default: Any = None, **bounds: Any) -> Any:
    """A field read from a variable outside our prefix."""
    return Field(default, validation_alias=AliasChoices(name), **bounds)


class Settings(BaseSettings):
    """All settings.  `load` reads the environment; `Settings.given` takes values only.

    Numbers carry their unit in the name: `_ms` milliseconds, `_s` seconds, `_h` and `_hours` hours,
    `_days` days, `_bytes` bytes.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    # Gates
    populate: Gate = Field(Reading.ABSENT, description="Write the chain store. Off: no cursor is read.")
    compare: Gate = Field(Reading.ABSENT, description="Judge what is stored against the log.")
    serve: Gate = Field(Reading.ABSENT, description="Let others read chains from the store.")
    cert: Gate = Field(Reading.ABSENT, description="Build chain certificates.")
    advance: Gate = Field(Reading.ABSENT, description="Give a second opinion on the advance decision.")
    rejoin: Gate = Field(Reading.ABSENT, description="Join a restart's second root where it is proven.")

    # The log
    dsn: Secret = Field(None, repr=False, description="postgresql:// URL of the database with the log.")
    dsn_file: File = Field(None, repr=False, description="File that holds the URL.")
    host: Text = _var("POSTGRES_HOST", repr=False, description="Server, when no URL is given.")
    port: Int = _var("POSTGRES_PORT", 5432, ge=1, le=PORT_MAX, repr=False, description="Its port.")
    user: Text = _var("POSTGRES_USER", repr=False, description="Role; one with SELECT on the log is enough.")
    database: Text = _var("POSTGRES_DATABASE", repr=False, description="Database.")
    password: Secret = _var("POSTGRES_PASSWORD", repr=False, description="Password.")
    password_file: File = _var("POSTGRES_PASSWORD_FILE", repr=False, description="File with the password.")
    sslmode: Annotated[str | None, BeforeValidator(tls_mode)] = _var(
        "PGSSLMODE", description="As in libpq: disable … verify-full."
    )
    sslrootcert: Text = _var("PGSSLROOTCERT", description="As in libpq: file with trusted roots.")
    noetl_schema: Annotated[str, BeforeValidator(identifier)] = _var(
        "NOETL_SCHEMA", "noetl", description="Schema of the event table."
    )
    query_timeout_s: Seconds = Field(
        10,
        ge=0.1,
        le=3600,
        description="Deadline of one query; how long one that reads much may be silent unasked.",
    )
    read_limit: Int = Field(
        10_000,
        ge=1,
        le=10_000_000,
        description="Rows of one execution's read; as many or more: truncated.",
    )

    # Tail
    tail: Annotated[Literal["poll", "wal"], BeforeValidator(lower)] = Field(
        "poll", description="How the table is followed. wal: by a replication slot."
    )
    wal_slot: Annotated[str, BeforeValidator(slot_name)] = Field(
        "noetl_chain", description="The slot that wal makes and reads; each shard adds its own ending."
    )
    wal_publication: Annotated[str, BeforeValidator(identifier)] = Field(
        "noetl_chain", description="The publication of the event table that wal reads."
    )
    poll_ms: Int = Field(150, ge=10, le=60_000, description="Pause between polls of the live lane.")
    live_window_s: Seconds = Field(60, ge=1, le=86_400, description="Range of the live lane by created_at.")
    late_window_s: Seconds = Field(3600, ge=1, le=31_536_000, description="Range of the late lane.")
    late_poll_s: Seconds = Field(15, ge=0.05, le=3600, description="Pause between polls of the late lane.")
    sweep_round_s: Seconds = Field(
        600, ge=0.5, le=86_400, description="Longest time for one round over all partitions."
    )
    lookback_s: Seconds = Field(
        3600, ge=0, le=31_536_000, description="What a store without a work list judges first."
    )
    pinned_s: Seconds = Field(
        60, ge=0.1, le=86_400, description="Age of a horizon from which the log says who holds it back."
    )
    held_rows: Int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Delivered rows of one execution waiting for a predecessor.",
    )
    held_rows_total: Int = Field(100_000, ge=1, le=100_000_000, description="The same over all executions.")
    shard_index: Index = Field(
        None, ge=0, le=1023, description="The shard to follow. Unset: the number that ends the host's name."
    )
    shard_count: Int = Field(1, ge=1, le=1024, description="Into how many shards they are divided.")

    # Store
    store: Annotated[str, BeforeValidator(store_url)] = Field(
        DEFAULT_STORE,
        repr=False,
        description="The chain store: a path, sqlite:///PATH, or postgresql://…?schema=noetl_chain.",
    )
    store_replicas: Annotated[tuple[str, ...], NoDecode, BeforeValidator(store_urls)] = Field(
        (), max_length=REPLICAS_MAX, repr=False, description="Stores that follow it, divided by commas."
    )
    store_synchronous: Annotated[Literal["normal", "full"], BeforeValidator(lower)] = Field(
        "normal", description="SQLite's synchronous. normal: a power cut only makes the tail read again."
    )
    store_max_bytes: Int = Field(
        0,
        ge=0,
        le=2**46,
        description="What the database file may grow to before the store pauses; 0: the disk.",
    )
    store_failure: Annotated[Literal["exit", "stay"], BeforeValidator(lower)] = Field(
        "exit", description="When the store cannot be opened: exit with 20, or stay up, off and not ready."
    )
    retain_days: Int = Field(
        0, ge=0, le=36_500, description="How long a partition stays whose log is gone; 0: for ever."
    )

    # Compare
    tick_s: Seconds = Field(5, ge=0.05, le=3600, description="Pause between the comparator's ticks.")
    settle_s: Seconds = Field(
        120, ge=0, le=86_400, description="An execution that keeps changing is judged at most this often."
    )
    dangling_s: Seconds = Field(
        120, ge=0, le=86_400, description="How long a missing predecessor is pending before it is a refusal."
    )
    stale_max_ticks: Int = Field(
        3, ge=1, le=1000, description="Stale judgements in a row before they are reported as unresolved."
    )

    evidence_max_bytes: Int = Field(
        64 * 1024 * 1024,
        ge=0,
        le=2**40,
        description="Evidence of all findings; beyond it the oldest goes.",
    )
    exclude: Annotated[tuple[str, ...], NoDecode, BeforeValidator(patterns)] = Field(
        (), description="Playbook paths left out of every verdict, divided by commas; * and ? are wild."
    )
    audit_round_s: Seconds = Field(
        3600, ge=1, le=31_536_000, description="A round over the whole history begins at most this often."
    )
    audit_share: Ratio = Field(
        0.1, ge=0, le=1, description="Greatest part of the time that the audit works; 0: no audit."
    )

    # Judging the run
    accept_coverage: Ratio = Field(
        0.95, ge=0, le=1, description="Least share of the eligible events that must be covered."
    )
    accept_executions: Int = Field(
        1000, ge=1, le=1_000_000_000, description="Least number of eligible executions."
    )
    accept_hours: Hours = Field(24, ge=0, le=87_600, description="Least time of observation.")
    invariant_window_h: Hours = Field(
        168,
        ge=0,
        le=87_600,
        description="How far back the roots of executions are counted; kept within 1 … 9600.",
    )

    # House
    api_bind: Annotated[Bind, NoDecode, BeforeValidator(bind)] = Field(
        DEFAULT_API_BIND, description="Listener of /api/v1. Other than loopback only with a token."
    )
    api_token: Secret = Field(None, repr=False, description="Bearer token of the API.")
    api_token_file: File = Field(None, repr=False, description="File that holds it.")
    metrics_bind: Annotated[Bind, NoDecode, BeforeValidator(bind)] = Field(
        DEFAULT_METRICS_BIND, description="Listener of /livez, /readyz and /metrics."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lower)] = Field(
        "auto", description="auto: console on a terminal, else json."
    )
    instance: Text = Field(
        None, description="Name of this sidecar in the record of the fleet; none: the host's."
    )
    fleet_beat_s: Seconds = Field(30, ge=0.1, le=3600, description="Pause between its heartbeats there.")
    gossip_bind: OptionalBind = Field(
        None, description="Where gossip is spoken, UDP and TCP; none: no socket. Needs a key."
    )
    gossip_peers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(peers)] = Field(
        (), description="Some other sidecars, host:port divided by commas; this one may be among them."
    )
    gossip_key_file: File = Field(
        None, repr=False, description="File with the keys of the fleet, one a line: 32 bytes in base64."
    )
    pg_bin: File = Field(None, description="Folder with the binaries of the embedded Postgres.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings)

    @model_validator(mode="after")
    def _shard_exists(self) -> Self:
        _ = self.shard
        return self

    @classmethod
    def given(cls, **values: Any) -> Settings:
        """Settings from `values` alone; the environment is not read.

        Raises:
            ConfigError: as `load`.
        """
        return _built(_Given, values)

    @property
    def gates(self) -> dict[str, Reading]:
        """Every gate and its reading, in the order of the design."""
        return {name: getattr(self, name) for name in GATES}

    @property
    def arming(self) -> Arming:
        """Armed over populate and compare; anything else that is on without them is partial.

        Source: spec 8.2, "Multi-gate arming".
        """
        populate, compare = self.populate is Reading.ON, self.compare is Reading.ON
        if populate and compare:
            return Arming.ARMED
        options = (self.serve, self.cert, self.rejoin)
        if populate or compare or Reading.ON in options:
            return Arming.PARTIAL
        return Arming.OFF

    @property
    def unrecognised(self) -> tuple[str, ...]:
        """Variables of gates whose text is neither on nor off."""
        return tuple(variable(name) for name, read in self.gates.items() if read is Reading.UNRECOGNISED)

    @property
    def windows(self) -> Windows:
        """The comparator's pauses in the core's unit, microseconds."""
        return Windows(
            tick=micros(self.tick_s),
            settle=micros(self.settle_s),
            dangling=micros(self.dangling_s),
            lookback=micros(self.lookback_s),
            stale_max_ticks=self.stale_max_ticks,
        )

    @property
    def shard(self) -> Shard:
        """The part of the executions that is followed.

        Raises:
            ConfigError: there is no such part.
        """
        return shard_of(self.shard_index, self.shard_count, gethostname())

    @property
    def invariant_window_hours(self) -> float:
        """`invariant_window_h` within its clamp.  Source: spec 3.8."""
        return min(max(self.invariant_window_h, INVARIANT_H_MIN), INVARIANT_H_MAX)

    def token(self) -> str | None:
        """The API's bearer token, None without one.  The file is read at every call.

        Raises:
            ConfigError: two are set, the file cannot be read, or no header could carry it.
        """
        name = variable("api_token")
        token = credentials.one_of(self.api_token, name, self.api_token_file, variable("api_token_file"))
        return None if token is None else credentials.sendable(*token)

    def gossip_keys(self) -> tuple[str, ...]:
        """The keys of the fleet, one a line, none without a file.  It is read at every call.

        Raises:
            ConfigError: the file cannot be read.
        """
        name = variable("gossip_key_file")
        key = credentials.one_of(None, name, self.gossip_key_file, name)
        return () if key is None else tuple(key[0].split())

    def source_dsn(self) -> str:
        """The URL to connect with, password included.  Files are read at every call.

        Raises:
            ConfigError: nothing is configured, two sources are, or a file cannot be read.
        """
        url = credentials.one_of(self.dsn, variable("dsn"), self.dsn_file, variable("dsn_file"))
        if url is not None:
            return credentials.checked_url(*url)
        if self.host is None:
            raise ConfigError(
                "no connection to the log is configured",
                hint=f"set {variable('dsn')} (or --dsn, --dsn-file), or POSTGRES_HOST and its companions",
            )
        password = credentials.one_of(
            self.password, "POSTGRES_PASSWORD", self.password_file, "POSTGRES_PASSWORD_FILE"
        )
        return credentials.url(
            host=self.host,
            port=str(self.port),
            user=self.user,
            password=None if password is None else password[0],
            database=self.database,
            sslmode=self.sslmode,
            sslrootcert=self.sslrootcert,
        )


class _Given(Settings):
    """Settings that look at no environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


GATES: Final = ("populate", "compare", "serve", "cert", "advance", "rejoin")


def load(*, dsn: str | None = None, dsn_file: str | None = None, store: str | None = None) -> Settings:
    """Read the environment; a command-line option stands above its variable.

    `--dsn` and `--dsn-file` each put aside both variables.

    Raises:
        ConfigError: a variable has no readable value; the message names it.
    """
    values: dict[str, Any] = {}
    if dsn is not None and dsn_file is not None:
        raise ConfigError("--dsn and --dsn-file are both given", hint="give one of the two")
    if dsn is not None or dsn_file is not None:
        values |= {"dsn": dsn, "dsn_file": dsn_file}
    if store is not None:
        values["store"] = store_option(store)
    return _built(Settings, values)


def store_option(text: str) -> str:
    """The URL behind `--store`.

    Raises:
        ConfigError: it is none.
    """
    try:
        return store_url(text)
    except ValueError as error:
        raise ConfigError(f"--store: {error}") from None


def variable(field: str) -> str:
    """The environment variable of a field."""
    alias = Settings.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return PREFIX + field.upper()


def unknown(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Variables with our prefix that are no setting: misspelt, mostly."""
    ours = {variable(field) for field in Settings.model_fields}
    names = os.environ if environ is None else environ
    return tuple(sorted(name for name in names if name.startswith(PREFIX) and name not in ours))


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def _built(cls: type[Settings], values: Mapping[str, Any]) -> Settings:
    try:
        return cls(**values)
    except ValidationError as error:
        raise ConfigError(_named(error), hint="see docs/configuration.md for units and bounds") from None


def _named(error: ValidationError) -> str:
    """One line that names each variable and what is wrong with it, never its content."""
    problems: Iterable[str] = (
        f"{_where(problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_context=False, include_url=False)
    )
    return "; ".join(problems)


def _where(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "settings"
    return variable(name) if name in Settings.model_fields else name.upper()
