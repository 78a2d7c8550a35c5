"""The suite starts the program some hundred times: once it is compiled, not each time."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_a_process_of_a_test_keeps_what_it_has_compiled(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "cache"):
        pytest.skip("no cache to keep it in")
    asked = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
