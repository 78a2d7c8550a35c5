"""The commands that have commands: `noetl-chain schema …` and `noetl-chain store …`.

As in `cli`, nothing heavy is imported before one of them runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sidecar import termination
from sidecar.commands.arguments import Group, execution_id
from sidecar.commands.command import NEGATIVE_IDS, Given, Json, command

schema = typer.Typer(
    help="Print or apply SQL; never NoETL's own tables.", no_args_is_help=True, rich_markup_mode=None
)
Reader = Annotated[str | None, typer.Option("--reader", metavar="ROLE", help="Name of the reader role.")]


@command(
    schema,
    "print",
    "noetl-chain schema print",
    "noetl-chain schema print postgres --reader noetl_chain_reader",
)
def schema_print(
    given: Given,
    group: Annotated[
        Group | None, typer.Argument(metavar="[store|noetl|postgres|wal]", help="All when left out.")
    ] = None,
    reader: Reader = None,
    as_json: Json = False,
) -> int:
    """Print the SQL on stdout, names in place."""
    settings = given.settings()
    from sidecar.commands.schema import main_print

    return main_print(settings, tuple(Group) if group is None else (group,), reader=reader, as_json=as_json)


@command(
    schema,
    "apply",
    "noetl-chain schema apply store --store /data/noetl-chain/chain.db",
    "noetl-chain schema apply postgres --dsn postgresql://owner@db/noetl --reader noetl_chain_reader",
)
def schema_apply(
    given: Given,
    group: Annotated[Group, typer.Argument(metavar="store|noetl|postgres|wal")],
    reader: Reader = None,
    event_table: Annotated[
        bool,
        typer.Option(
            "--event-table", help="With noetl: create an empty event table where none is, for a demo."
        ),
    ] = False,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="URL",
            help="With store: a server that lends leaves; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Apply one group in one transaction.

    The store's layout, or the reader role and its rights.
    """
    settings = given.settings()
    from sidecar.commands.schema import main_apply

    termination.unwind()
    nodes = tuple(node or ())
    return main_apply(settings, group, reader=reader, event_table=event_table, nodes=nodes, as_json=as_json)


store = typer.Typer(help="Check, copy or rebuild a store file.", no_args_is_help=True, rich_markup_mode=None)


@command(
    store,
    "check",
    "noetl-chain store check --store chain.db",
    "noetl-chain store check --store chain.db --quick --json",
)
def store_check(
    given: Given,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out comparing every index with its table.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Read the whole store, say what contradicts itself.

    Also beside a running sidecar.
    """
    settings = given.settings()
    from sidecar.commands.store import main_store_check

    termination.unwind()
    return main_store_check(settings, quick=quick, as_json=as_json)


@command(store, "backup", "noetl-chain store backup copy.db --store chain.db")
def store_backup(
    given: Given,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to make; it must not exist.")],
    as_json: Json = False,
) -> int:
    """Copy the store into one file and check the copy.

    Also beside a running sidecar.
    """
    settings = given.settings()
    from sidecar.commands.store import main_store_backup

    termination.unwind()
    return main_store_backup(settings, path, as_json=as_json)


@command(
    store,
    "rebuild",
    "noetl-chain store rebuild 617234891234567890 --dsn-file /run/secrets/dsn --store chain.db",
    context_settings=NEGATIVE_IDS,
)
def store_rebuild(
    given: Given,
    execution: Annotated[str, typer.Argument(metavar="ID", help="The execution.")],
    as_json: Json = False,
) -> int:
    """Fill one partition anew from the log.

    What stood there is kept as evidence.  Not beside a running sidecar.  A log that is refused
    changes nothing and ends with 3.
    """
    wanted = execution_id(execution, hint="ID")
    settings = given.settings()
    from sidecar.commands.store import main_store_rebuild

    termination.unwind()
    return main_store_rebuild(settings, wanted, as_json=as_json)


@command(store, "upgrade", "noetl-chain store upgrade --store chain.db")
def store_upgrade(given: Given, as_json: Json = False) -> int:
    """Bring a store of an older layout to this one.

    There is no older one yet.
    """
    settings = given.settings()
    from sidecar.commands.store import main_store_upgrade

    return main_store_upgrade(settings)
