"""A scenario as Python code hands it over: a file, a mapping or a scenario, and perhaps a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import user_code, yaml_file
from ..errors import InputError
from .schema import Scenario, load, parse


def asked(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    task: Callable[..., Any] | None = None,
    changes: Sequence[str] = (),
) -> Scenario:
    """The scenario that is meant.

    Args:
        scenario: one, the path of its file, or what would stand there.
        task: takes the place of its task, if given.
        changes: ``dotted.key=value`` each.

    Raises:
        InputError: what is wrong.
    """
    own = [] if task is None else [f"workload.task={user_code.name_of(task)}"]
    try:
        if isinstance(scenario, str | Path):
            return load(scenario, [*own, *changes])
        if isinstance(scenario, Scenario):
            if not own and not changes:
                return scenario
            data = scenario.model_dump(mode="json")
            for option in type(scenario.workload.options).model_fields if own else ():
                data["workload"].pop(option, None)
            scenario = data
        return parse(yaml_file.write(scenario), "scenario", [*own, *changes])
    except InputError as error:
        raise InputError(str(error).replace(f"--set {own[0]}", "task") if own else str(error)) from error
