"""Predictions repeated over the transport of a measurement, so that both can be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.folder import Results, Studies, write_results
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse


def price_again(studies: Studies, scratch: Path, say: Callable[[str], None]) -> list[Path]:
    """Simulate anew, into ``scratch``, each prediction beside a measurement (same name) over another
    transport; return the new folders. ``say`` is called before each.
    """
    with reading_results(*(folder for folder, _ in studies)):
        measured = {
            each.summary["scenario"]: scenario.cluster.backend
            for _, each in studies
            if _sources(each) == {"measured"} and (scenario := _scenario(each)) is not None
        }
        priced = []
        for folder, each in studies:
            backend, scenario = measured.get(each.summary["scenario"]), _scenario(each)
            if backend is None or scenario is None or _sources(each) != {"simulated"}:
                continue
            if scenario.cluster.network.transport in (None, backend):
                continue
            again = over_transport(scenario, backend)
            say(f"{folder}: predicting again over {backend}, which carried the measurement")
            out = scratch / f"{folder.name}-over-{backend}"
            write_results(out, dump(again), again.name, list(simulate(again)))
            priced.append(out)
        return priced


def _sources(results: Results) -> set[str]:
    return {run["source"] for run in results.summary["runs"]}


def _scenario(results: Results) -> Scenario | None:
    try:
        return parse(results.scenario)
    except InputError:
        return None
