"""The commands.  Options in, one call into `app`, an exit code out.

Nothing heavy is imported before a command runs, so that `--help` answers at once.  One place
turns failures into a line on stderr and an exit code; only our own bugs show a stack trace.
Machine output goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sidecar import __version__, termination
from sidecar.arguments import Format, execution_id, finding_number, moment
from sidecar.errors import ConfigError, InvariantError, SidecarError

if TYPE_CHECKING:  # pydantic-settings takes longer to import than the rest together
    from sidecar.settings import Settings

SETTLE_ON_TERMINAL_S: Final = 5.0
INTERRUPTED: Final = 130

cli = typer.Typer(
    name="noetl-chain",
    help="Follow noetl.event, feed a chain store, show how often they disagreed and how much was compared.",
    epilog=(
        "Exit codes: 0 good, 1 findings, 2 usage or configuration, 3 incomplete, "
        "10 Postgres unavailable, 20 store unusable."
    ),
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Dsn = Annotated[
    str | None,
    typer.Option("--dsn", metavar="URL", help="postgresql:// URL of the log. [NOETL_CHAIN_DSN]"),
]
DsnFile = Annotated[
    str | None,
    typer.Option("--dsn-file", metavar="FILE", help="File with that URL. [NOETL_CHAIN_DSN_FILE]"),
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH|URL", help="The chain store. [NOETL_CHAIN_STORE]"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@cli.command()
def run(dsn: Dsn = None, dsn_file: DsnFile = None, store: Store = None) -> None:
    """Follow the log until SIGTERM: the sidecar."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import app

    raise typer.Exit(app.main_run(settings))


@cli.command()
def verify(
    execution: Annotated[
        list[str] | None,
        typer.Option("--execution", metavar="ID", help="Only this execution; may be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Only executions with an event since then: 90s, 15m, 2h, 7d, or an ISO 8601 time (UTC).",
        ),
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(
            "--settle",
            min=0,
            max=86_400,
            metavar="S",
            help="Seconds after which what is pending is read again; 5 on a terminal, else 0.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="Write a page with the findings drawn, too."),
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Compare every execution of the log once.

    Without --store a temporary store is filled, read back guarded and compared (the variable
    NOETL_CHAIN_STORE alone does not count).  With --store that store is opened read-only and
    compared; it is never written.
    """
    executions = tuple(execution_id(text) for text in execution or ())
    begun = _moment(since)
    from sidecar.settings import store_option

    opened = None if store is None else store_option(store)
    settings = _settings(dsn, dsn_file, None)
    from sidecar import app

    termination.unwind()
    raise typer.Exit(
        app.main_verify(
            settings,
            executions=executions,
            since=begun,
            store=opened,
            settle=_settle(settle),
            as_json=as_json,
            report=report,
        )
    )


@cli.command()
def backfill(as_json: Json = False, dsn: Dsn = None, dsn_file: DsnFile = None, store: Store = None) -> None:
    """Fill the store from the whole log; started again it goes on where it stopped."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import app

    termination.unwind()
    raise typer.Exit(app.main_backfill(settings, as_json=as_json))


@cli.command()
def status(
    api: Annotated[
        str | None,
        typer.Option("--api", metavar="URL", help="Ask a running sidecar: http://127.0.0.1:9110."),
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Show coverage beside divergences, and whether the run may be accepted.

    From a running sidecar, or from a store file, also beside one.  Exit 0 accepted, 1 findings,
    3 not accepted for another reason.
    """
    settings = _settings(dsn, dsn_file, store)
    from sidecar import statuscommand

    termination.unwind()
    raise typer.Exit(statuscommand.main_status(settings, api=api, as_json=as_json))


@cli.command()
def doctor(as_json: Json = False, dsn: Dsn = None, dsn_file: DsnFile = None, store: Store = None) -> None:
    """Check server, role, table, horizon, store and settings; every finding names its remedy."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar.doctor.main import main_doctor

    termination.unwind()
    raise typer.Exit(main_doctor(settings, as_json=as_json))


@cli.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=1, max=86_400, metavar="N", help="Play at most this long."),
    ] = None,
    speed: Annotated[
        float,
        typer.Option("--speed", min=0.1, max=1000, metavar="X", help="Divide all gaps by this."),
    ] = 8.0,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up afterwards, until Ctrl-C.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Play recorded logs with planted faults against an embedded Postgres, and judge the judge.

    Exit 1 if a verdict contradicts the ledger of planted faults.
    """
    if (dsn, dsn_file, store) != (None, None, None):
        raise ConfigError(
            "the demo brings its own Postgres and its own store",
            hint="leave out --dsn, --dsn-file and --store; use `run` or `verify` on yours",
        )
    from sidecar.demo.main import main_demo

    termination.unwind()
    raise typer.Exit(main_demo(seconds=seconds, speed=speed, keep=keep, as_json=as_json))


@cli.command("inspect", context_settings={"ignore_unknown_options": True})
def inspect_(
    execution: Annotated[str, typer.Argument(metavar="ID", help="The execution.")],
    form: Annotated[
        Format, typer.Option("--format", metavar="text|json|mermaid|dot", help="How it is shown.")
    ] = Format.TEXT,
    everything: Annotated[bool, typer.Option("--all", help="Fold no linear runs.")] = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the bodies that the findings keep.")
    ] = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Show one execution: its links as a tree, what each side holds, verdict, findings.

    Read-only, also beside a running sidecar; without a store it shows the log, without
    Postgres the store.  An execution that was never seen ends with 3.
    """
    wanted = execution_id(execution, hint="ID")
    settings = _settings(dsn, dsn_file, store)
    from sidecar import inspectcommand

    termination.unwind()
    raise typer.Exit(
        inspectcommand.main_inspect(
            settings,
            wanted,
            form=form.value,
            everything=everything,
            payload=payload,
            store_given=store is not None,
        )
    )


@cli.command(context_settings={"ignore_unknown_options": True})
def ack(
    finding: Annotated[
        str, typer.Argument(metavar="ID", help="The finding's number, as `inspect` shows it.")
    ],
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back: the finding counts again.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Acknowledge one finding: kept and shown, no longer counted in acceptance or alerts.

    Also beside a running sidecar.
    """
    number = finding_number(finding)
    settings = _settings(dsn, dsn_file, store)
    from sidecar import ackcommand

    raise typer.Exit(ackcommand.main_ack(settings, number, why=why, undo=undo, as_json=as_json))


schema = typer.Typer(
    help="Print or apply the SQL this program brings; NoETL's own tables are never touched.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli.add_typer(schema, name="schema")

Reader = Annotated[str | None, typer.Option("--reader", metavar="ROLE", help="Name of the reader role.")]


@schema.command("print")
def schema_print(
    group: Annotated[
        str | None, typer.Argument(metavar="[store|noetl|postgres]", help="All when left out.")
    ] = None,
    reader: Reader = None,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Print the SQL on stdout, names in place."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import schema as files

    groups = tuple(files.Group) if group is None else (_group(group, tuple(files.Group)),)
    text = files.printed(
        tuple(files.Group(each) for each in groups),
        schema=settings.noetl_schema,
        reader=reader or files.READER,
    )
    typer.echo(text)


@schema.command("apply")
def schema_apply(
    group: Annotated[str, typer.Argument(metavar="store|noetl|postgres")],
    reader: Reader = None,
    event_table: Annotated[
        bool,
        typer.Option(
            "--event-table", help="With noetl: create an empty event table where none is, for a demo."
        ),
    ] = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Apply one group in one transaction: the store's layout, or the reader role and its rights."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import schema as files

    wanted = files.Group(_group(group, tuple(files.Group)))
    termination.unwind()
    done = files.apply(settings, wanted, reader=reader or files.READER, event_table=event_table)
    typer.echo(done, err=True)


def _group(text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise typer.BadParameter("store, noetl or postgres", param_hint="GROUP")
    return text


store_group = typer.Typer(
    help="Look after a store file: check it, copy it, fill one partition anew.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli.add_typer(store_group, name="store")


@store_group.command("check")
def store_check(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out comparing every index with its table.")
    ] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Read the whole store, also beside a running sidecar, and say what contradicts itself."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import storecommands

    termination.unwind()
    raise typer.Exit(storecommands.main_store_check(settings, quick=quick, as_json=as_json))


@store_group.command("backup")
def store_backup(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to make; it must not exist.")],
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Copy the store into one file, also beside a running sidecar, and check the copy."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import storecommands

    termination.unwind()
    raise typer.Exit(storecommands.main_store_backup(settings, path, as_json=as_json))


@store_group.command("rebuild", context_settings={"ignore_unknown_options": True})
def store_rebuild(
    execution: Annotated[str, typer.Argument(metavar="ID", help="The execution.")],
    as_json: Json = False,
    dsn: Dsn = None,
    dsn_file: DsnFile = None,
    store: Store = None,
) -> None:
    """Fill one partition anew from the log; what stood there is kept as evidence.

    Not beside a running sidecar.  A log that is refused changes nothing and ends with 3.
    """
    wanted = execution_id(execution, hint="ID")
    settings = _settings(dsn, dsn_file, store)
    from sidecar import storecommands

    termination.unwind()
    raise typer.Exit(storecommands.main_store_rebuild(settings, wanted, as_json=as_json))


@store_group.command("upgrade")
def store_upgrade(dsn: Dsn = None, dsn_file: DsnFile = None, store: Store = None) -> None:
    """Bring a store of an older layout to this one; there is no older one yet."""
    settings = _settings(dsn, dsn_file, store)
    from sidecar import storecommands

    raise typer.Exit(storecommands.main_store_upgrade(settings))


def entry(arguments: Sequence[str]) -> int:
    """Run one command and say how it ended.

    Returns:
        The exit code of the design; 130 after Ctrl-C.
    """
    try:
        cli(args=list(arguments), prog_name="noetl-chain")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except InvariantError:
        raise
    except SidecarError as failure:
        return _failed([failure])
    except BaseExceptionGroup as group:
        failures = list(_failures(group))
        if not failures:
            raise
        return _failed(failures)
    return 0


def _failures(group: BaseExceptionGroup[BaseException]) -> Iterator[SidecarError]:
    """The failures in a group; none at all if anything else is in it: that is our bug."""
    leaves = list(_leaves(group))
    if all(isinstance(leaf, SidecarError) and not isinstance(leaf, InvariantError) for leaf in leaves):
        yield from (leaf for leaf in leaves if isinstance(leaf, SidecarError))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for part in group.exceptions:
        if isinstance(part, BaseExceptionGroup):
            yield from _leaves(part)
        else:
            yield part


def _failed(failures: Sequence[SidecarError]) -> int:
    """One line and one hint for each failure; the first decides the exit code."""
    for failure in failures:
        line = " ".join(str(failure).split())
        print(f"noetl-chain: {line}", file=sys.stderr)  # noqa: T201 - the one place that speaks to people
        if failure.hint:
            print(f"  {failure.hint}", file=sys.stderr)  # noqa: T201
    return failures[0].exit_code


def _settings(dsn: str | None, dsn_file: str | None, store: str | None) -> Settings:
    from sidecar.settings import load

    return load(dsn=dsn, dsn_file=dsn_file, store=store)


def _settle(given: float | None) -> float:
    if given is not None:
        return given
    return SETTLE_ON_TERMINAL_S if sys.stdout.isatty() else 0.0


def _moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text, now=datetime.now(UTC))


def _version(show: bool) -> None:
    if show:
        typer.echo(f"noetl-chain {__version__}")
        raise typer.Exit


@cli.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Common to all commands."""
