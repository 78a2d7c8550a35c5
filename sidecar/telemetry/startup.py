"""What a start says of its settings: one line a gate, one for the arming, one a useless variable.

Each unrecognised gate is warned of once, here.  Source: spec 8.2, 8.4.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from sidecar.settings import Arming, Reading, Settings, unknown, variable
from sidecar.telemetry.metrics import Metrics


def announce(settings: Settings, log: FilteringBoundLogger, metrics: Metrics) -> None:
    """Log and export the gates.  Called once, by every way of starting the sidecar."""
    metrics.gates(settings.gates, settings.arming)
    for gate, reading in settings.gates.items():
        say = log.warning if reading is Reading.UNRECOGNISED else log.info
        say("gate", gate=gate, reading=reading.value, variable=variable(gate))
    say = log.warning if settings.arming is Arming.PARTIAL else log.info
    say("arming", state=settings.arming.value)
    for name in unknown():
        log.warning("setting_without_effect", variable=name)
