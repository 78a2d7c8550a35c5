"""The commands.  Options in, one call into `app`, an exit code out.

Nothing heavy is imported before a command runs, so that `--help` answers at once.  One place
turns failures into a line on stderr and an exit code; only our own bugs show a stack trace.
Machine output goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from sidecar import __version__, termination
from sidecar.commands import completion, groups
from sidecar.commands.arguments import Format, Shell, execution_id, finding_number, moment
from sidecar.commands.command import NEGATIVE_IDS, Given, Json, command
from sidecar.errors import ConfigError, InvariantError, SidecarError

SETTLE_ON_TERMINAL_S: Final = 5.0
INTERRUPTED: Final = 130
UNREAD: Final = 128 + signal.SIGPIPE
UNWRITABLE: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Of stdout: whatever else fails with one of these has been turned into an error of ours."""

cli = typer.Typer(
    name=completion.PROGRAM,
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


@command(
    cli,
    "run",
    "NOETL_CHAIN_POPULATE=on NOETL_CHAIN_COMPARE=on noetl-chain run --dsn-file /run/secrets/dsn",
    "noetl-chain run --store /data/noetl-chain/chain.db",
)
def run(given: Given) -> int:
    """Follow the log until SIGTERM: the sidecar."""
    settings = given.settings()
    from sidecar import app

    return app.main_run(settings)


@command(
    cli,
    "verify",
    "noetl-chain verify --dsn postgresql://reader@db/noetl",
    "noetl-chain verify --dsn-file /run/secrets/dsn --store chain.db --since 2h --json",
    "noetl-chain verify --execution 617234891234567890 --report findings.html",
)
def verify(
    given: Given,
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
) -> int:
    """Compare every execution of the log once.

    Without --store a temporary store is filled, read back guarded and compared (the variable
    NOETL_CHAIN_STORE alone does not count).  With --store that store is opened read-only and
    compared; it is never written.
    """
    executions = tuple(execution_id(text) for text in execution or ())
    begun = _moment(since)
    from sidecar.settings import store_option

    opened = None if given.store is None else store_option(given.store)
    settings = Given(given.dsn, given.dsn_file).settings()
    from sidecar.commands.verify import main_verify

    termination.unwind()
    return main_verify(
        settings,
        executions=executions,
        since=begun,
        store=opened,
        settle=_settle(settle),
        as_json=as_json,
        report=report,
    )


@command(
    cli,
    "backfill",
    "noetl-chain backfill --dsn postgresql://reader@db/noetl --store /data/noetl-chain/chain.db",
)
def backfill(given: Given, as_json: Json = False) -> int:
    """Fill the store from the whole log.

    Started again it goes on where it stopped.
    """
    settings = given.settings()
    from sidecar.commands.backfill import main_backfill

    termination.unwind()
    return main_backfill(settings, as_json=as_json)


@command(
    cli,
    "status",
    "noetl-chain status --api http://127.0.0.1:9110",
    "noetl-chain status --store chain.db --json",
)
def status(
    given: Given,
    api: Annotated[
        str | None,
        typer.Option("--api", metavar="URL", help="Ask a running sidecar: http://127.0.0.1:9110."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show coverage beside divergences, and acceptance.

    From a running sidecar, or from a store file, also beside one.  Exit 0 accepted, 1 findings,
    3 not accepted for another reason: the reasons are shown.
    """
    settings = given.settings()
    from sidecar.commands.status import main_status

    termination.unwind()
    return main_status(settings, api=api, as_json=as_json)


@command(cli, "doctor", "noetl-chain doctor --dsn postgresql://reader@db/noetl --store chain.db")
def doctor(given: Given, as_json: Json = False) -> int:
    """Check server, role, table, store and settings.

    Also the horizon, and who holds it back.  Every finding names its remedy; nothing is written,
    also beside a running sidecar.
    """
    settings = given.settings()
    from sidecar.doctor.main import main_doctor

    termination.unwind()
    return main_doctor(settings, as_json=as_json)


@command(cli, "demo", "noetl-chain demo", "noetl-chain demo --keep", "noetl-chain demo --seconds 20 --json")
def demo(
    given: Given,
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
) -> int:
    """Play recorded logs with planted faults.

    Against an embedded Postgres, and the judge is judged: exit 1 if a verdict contradicts the
    ledger of planted faults.
    """
    given.none("the demo brings its own Postgres and its own store", "use `run` or `verify` on yours")
    from sidecar.demo.main import main_demo

    termination.unwind()
    return main_demo(seconds=seconds, speed=speed, keep=keep, as_json=as_json)


@command(
    cli,
    "inspect",
    "noetl-chain inspect 617234891234567890 --store chain.db",
    "noetl-chain inspect 617234891234567890 --dsn-file /run/secrets/dsn --format dot",
    context_settings=NEGATIVE_IDS,
)
def inspect_(
    given: Given,
    execution: Annotated[str, typer.Argument(metavar="ID", help="The execution.")],
    form: Annotated[
        Format | None,
        typer.Option("--format", metavar="text|json|mermaid|dot", help="How it is shown; text."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Fold no linear runs.")] = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the bodies that the findings keep.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> int:
    """Show one execution, its links as a tree.

    What each side holds, the verdict, the findings.  Read-only, also beside a running sidecar;
    without a store it shows the log, without Postgres the store.  An execution that was never
    seen ends with 3.
    """
    wanted = execution_id(execution, hint="ID")
    if as_json and form not in (None, Format.JSON):
        raise ConfigError("--json and another --format are both given", hint="leave one of them out")
    settings = given.settings()
    from sidecar.commands.inspect import main_inspect

    termination.unwind()
    return main_inspect(
        settings,
        wanted,
        form=(Format.JSON if as_json else form or Format.TEXT).value,
        everything=everything,
        payload=payload,
        store_given=given.store is not None,
    )


@command(
    cli,
    "ack",
    "noetl-chain ack 41 --why 'restored from backup' --store chain.db",
    "noetl-chain ack 41 --undo --store chain.db",
    context_settings=NEGATIVE_IDS,
)
def ack(
    given: Given,
    finding: Annotated[
        str, typer.Argument(metavar="ID", help="The finding's number, as `inspect` shows it.")
    ],
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back: the finding counts again.")] = False,
    as_json: Json = False,
) -> int:
    """Acknowledge one finding, also beside a running sidecar.

    It is kept and shown, and no longer counted in acceptance or alerts.
    """
    number = finding_number(finding)
    settings = given.settings()
    from sidecar.commands.ack import main_ack

    return main_ack(settings, number, why=why, undo=undo, as_json=as_json)


@command(
    cli,
    "completion",
    "noetl-chain completion bash",
)
def completion_(
    given: Given,
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> int:
    """Print a script that completes commands and options.

    bash: eval "$(noetl-chain completion bash)" in ~/.bashrc; docs/commands.md has the others.
    """
    given.none("a completion script knows neither log nor store", "it is the same for all")
    typer.echo(completion.script(shell.value))
    return 0


cli.add_typer(groups.schema, name="schema")
cli.add_typer(groups.store, name="store")


def entry(arguments: Sequence[str]) -> int:
    """Run one command and say how it ended.

    Returns:
        The exit code of the design; 130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    output = sys.stdout
    try:
        code = _ended(arguments)
        output.flush()
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        with suppress(OSError, ValueError):  # what is left of the output goes nowhere, and silently
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if error.errno == errno.EPIPE:
            return UNREAD
        why = errno.errorcode[error.errno]
        return _failed([ConfigError(f"the output cannot be written ({why})", hint="write it elsewhere")])
    return code if sys.stdout is output else UNREAD  # typer puts another one there


def _ended(arguments: Sequence[str]) -> int:
    if completion.VARIABLE in os.environ:
        completion.prepare()
    try:
        cli(args=list(arguments), prog_name=completion.PROGRAM)
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
            print(f"  {failure.hint}", file=sys.stderr)  # noqa: T201 - as above
    return failures[0].exit_code


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
