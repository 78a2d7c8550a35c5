"""Generated examples are judged by what they find, never by how busy the machine is."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "noetl-chain", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "mutants",  # the same examples every time, and none made smaller: that it fails is all that is asked
    settings.get_profile("noetl-chain"),
    database=None,
    derandomize=True,
    max_examples=60,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutants" if "MUTANT_UNDER_TEST" in os.environ else "noetl-chain")
