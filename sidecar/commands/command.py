"""What every command has: the options that name log and store, examples under its help, an exit code.

The options stand here once; a command gets them as one value, `Given`, in front of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from sidecar.errors import ConfigError

if TYPE_CHECKING:  # pydantic-settings takes longer to import than the rest together
    from sidecar.settings import Settings

Dsn: TypeAlias = Annotated[
    str | None,
    typer.Option("--dsn", metavar="URL", help="postgresql:// URL of the log. [NOETL_CHAIN_DSN]"),
]
DsnFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--dsn-file", metavar="FILE", help="File with that URL. [NOETL_CHAIN_DSN_FILE]"),
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH|URL", help="The chain store. [NOETL_CHAIN_STORE]"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

NEGATIVE_IDS: Final = {"ignore_unknown_options": True}
"""Context settings of a command whose argument may begin with a minus sign."""


@dataclass(frozen=True, slots=True)
class Given:
    """The options that every command takes, as they were given."""

    dsn: str | None = None
    dsn_file: str | None = None
    store: str | None = None

    def settings(self) -> Settings:
        """The settings, these options in front of the environment.

        Raises:
            ConfigError: something in them is wrong.
        """
        from sidecar.settings import load

        return load(dsn=self.dsn, dsn_file=self.dsn_file, store=self.store)

    def none(self, why: str, hint: str) -> None:
        """Refuse them for a command that has neither log nor store of its caller.

        Raises:
            ConfigError: one was given.
        """
        if self != Given():
            raise ConfigError(why, hint=f"leave out --dsn, --dsn-file and --store; {hint}")


def command(
    group: typer.Typer,
    name: str,
    *examples: str,
    context_settings: dict[str, Any] | None = None,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function that takes `Given` first, and returns an exit code, a command of `group`.

    Args:
        examples: Whole command lines; they end its help.
    """

    def made(work: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        common = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for each, annotation in (("dsn", Dsn), ("dsn_file", DsnFile), ("store", Store))
        ]
        taken = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + common

        def called(**options: Any) -> None:
            given = Given(*(options.pop(each.name) for each in common))
            raise typer.Exit(work(given, **options))

        told: Any = called  # typer asks for what stands here
        told.__signature__ = inspect.Signature(taken)
        told.__annotations__ = {each.name: each.annotation for each in taken}
        told.__doc__ = work.__doc__
        group.command(name, epilog=_shown(examples), context_settings=context_settings)(told)
        return work

    return made


def _shown(examples: tuple[str, ...]) -> str:
    """The mark keeps the lines as they are, however narrow the terminal: they are there to be copied."""
    return "\n".join(("\b", "Examples:", *(f"  {each}" for each in examples)))
