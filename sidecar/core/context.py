"""What a template of the workflow sees: the context a state builds, and the names `set` writes.

Source: spec 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.core.envelope import user_data
from sidecar.core.jsonvalue import ABSENT, Json
from sidecar.core.state import WorkflowState

_SCOPES: Final = frozenset({"ctx", "iter", "step"})


def build_context(state: WorkflowState) -> dict[str, Json]:
    """The names a template may use, later ones winning.

    The workload's keys and `workload` itself, when it is an object; each step's data under its
    name and its whole result under `steps`; the durable `ctx` over all of these; the ids as
    text, path and version over everything.
    """
    context: dict[str, Json] = {}
    if isinstance(state.workload, dict):
        context.update(state.workload)
        context["workload"] = state.workload
    results = {name: step.result for name, step in state.steps.items() if step.result is not ABSENT}
    for name, result in results.items():
        data = user_data(result)
        if data is not ABSENT:
            context[name] = _with_data(data)
    context["steps"] = results
    context.update(state.ctx)
    context["execution_id"] = str(state.execution_id)
    context["catalog_id"] = str(state.catalog_id)
    if state.path is not None:
        context["path"] = state.path
    if state.version is not None:
        context["version"] = state.version
    return context


def _with_data(data: Json) -> Json:
    """Make `step.data.x` mean `step.x` where the step named nothing `data` itself."""
    if isinstance(data, dict) and "data" not in data:
        return {**data, "data": data}
    return data


def set_targets(mutations: Mapping[str, Json]) -> dict[str, Json]:
    """`set` mutations by the name they write: a known scope before the first dot is dropped.

    Every other key, dotted or not, stays whole.  A later key wins over an earlier one that
    writes the same name.
    """
    return {_target(key): value for key, value in mutations.items()}


def _target(key: str) -> str:
    scope, dot, name = key.partition(".")
    return name if dot and scope in _SCOPES else key
