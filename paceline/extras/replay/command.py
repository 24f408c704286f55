"""``paceline replay``: recorded runs again, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.console import print_result, say


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a result folder with all events")],
) -> None:
    """Replay recorded runs in one process, and compare the models."""
    from paceline.extras.replay.verify import verify_replay
    from paceline.sim.config.user_code.code_files import code_files
    from paceline.sim.devices import one_thread
    from paceline.sim.scenario.ready import refuse_scenarios

    refuse_scenarios([folder])
    agree = True
    with one_thread():
        for number, replayed in enumerate(verify_replay(folder)):
            if number == 0:
                for name, file in code_files().items():
                    say(f"the record names code, which is not in it: {name} is {file}")
            agree &= replayed.agrees
            verdict = "the same final parameters, bit for bit"
            if not replayed.same_bits:
                apart = "unknown" if replayed.difference is None else f"{replayed.difference:.1e}"
                verdict = f"other final parameters; relative difference of the final loss {apart}"
            run = replayed.run
            print_result(f"{run.label}, seed {run.seed}, {run.source}: {verdict}\n")
    if not agree:
        raise typer.Exit(1)
