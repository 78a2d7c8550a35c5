"""The event table for the demo and the tests; never run against a NoETL database.

An older install is the same table without the columns that NoETL added later by ALTER:
they, and the index on one of them, stand in a file of their own.
"""

from __future__ import annotations

from typing import Final

from sidecar import sql

LATE_COLUMNS: Final = ("prev_event_id", "command_id", "stage_id", "frame_id")
_LATE_FILE: Final = "005_late_columns.sql"


def event_table(schema: str = "noetl", *, late_columns: bool = True) -> str:
    """The statements that create the event table in an empty database, to be run at once."""
    files = (file for file in sql.scripts("noetl") if late_columns or file.name != _LATE_FILE)
    return "\n".join(sql.rendered(file.text, {"schema": schema}) for file in files)


def reader_role(reader: str, schema: str = "noetl") -> str:
    """The statements that create the read-only role and its rights; the table must stand."""
    names = {"reader": reader, "schema": schema}
    return "\n".join(sql.rendered(file.text, names) for file in sql.scripts("postgres"))
