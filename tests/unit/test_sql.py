"""Names in SQL, and the numbered files."""

from __future__ import annotations

import re

import pytest

from sidecar import sql
from sidecar.errors import ConfigError


@pytest.mark.parametrize(("name", "written"), [("noetl", '"noetl"'), ('a"b', '"a""b"'), ("A b", '"A b"')])
def test_a_name_is_quoted(name: str, written: str) -> None:
    assert sql.quoted(name) == written


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ü" * 32])
def test_a_name_that_postgres_would_change_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        sql.quoted(name)


def test_variables_become_names_and_psqls_own_lines_go() -> None:
    text = "\\set schema noetl\nSELECT 'a:b'::text, 1 FROM :\"schema\".event;"
    assert sql.rendered(text, {"schema": 'x"; --'}) == 'SELECT \'a:b\'::text, 1 FROM "x""; --".event;'


def test_a_variable_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="reader"):
        sql.rendered('GRANT SELECT ON x TO :"reader";', {"schema": "noetl"})


@pytest.mark.parametrize("group", ["noetl", "postgres"])
def test_files_are_numbered_without_a_gap(group: str) -> None:
    numbers = [re.match(r"\d{3}", file.name) for file in sql.scripts(group)]
    assert [int(number[0]) for number in numbers if number] == list(range(1, len(numbers) + 1))
