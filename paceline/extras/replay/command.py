"""``paceline replay``: recorded runs again, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from paceline.commands.console import print_result, say

_MARKS: Final = (b"PK\x03\x04", b"archive/data.pkl")
"""In all files of ``--out``."""


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="a result folder; to compare, with all events")
    ],
    at: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="write a worker's model after this step instead"),
    ] = None,
    worker: Annotated[int, typer.Option(metavar="RANK", help="the worker of --at")] = 0,
    run: Annotated[
        str, typer.Option(metavar="NAME", help="the run of --at, of several: 'gossip, seed 0'")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="MODEL.pt", help="the state_dict of --at")] = None,
) -> None:
    """Replay recorded runs in one process. Compares the models, or writes one."""
    from paceline.extras.replay.verify import verify_replay
    from paceline.sim.devices import one_thread
    from paceline.sim.errors import InputError
    from paceline.sim.scenario.ready import refuse_scenarios

    refuse_scenarios([folder])
    if at is not None and out is not None:
        _write(folder, at, worker, run, out)
        return
    if (at, worker, run, out) != (None, 0, "", None):
        raise InputError("--at STEP needs --out MODEL.pt, and --out, --worker and --run need --at")
    agree = True
    with one_thread():
        for number, replayed in enumerate(verify_replay(folder)):
            if number == 0:
                _say_code()
            agree &= replayed.agrees
            verdict = "the same final parameters, bit for bit"
            if not replayed.same_bits:
                apart = "unknown" if replayed.difference is None else f"{replayed.difference:.1e}"
                verdict = f"other final parameters; relative difference of the final loss {apart}"
            print_result(
                f"{replayed.run.label}, seed {replayed.run.seed}, {replayed.run.source}: {verdict}\n"
            )
    if not agree:
        raise typer.Exit(1)


def _say_code() -> None:
    from paceline.sim.config.user_code.code_files import code_files

    for name, file in code_files().items():
        say(f"the record names code, which is not in it: {name} is {file}")


def _write(folder: Path, at: int, worker: int, run: str, out: Path) -> None:
    from io import BytesIO

    import torch

    from paceline.extras.replay.model import find_model
    from paceline.sim.config.files import check_out_file, save_atomically
    from paceline.sim.records.run import exact_exchanges

    check_out_file(out, _MARKS)
    record, tensors = find_model(folder, at, worker, run)
    _say_code()
    content = BytesIO()
    torch.save(tensors, content)
    save_atomically(out, lambda new: new.write_bytes(content.getvalue()))
    exact = record.run.source == "simulated" or exact_exchanges(record.run.exchanges)
    equal = "to the bit" if exact else "up to the rounding of a library's sums"
    print_result(f"{record.name}: worker {worker} after step {at}, equal {equal}: {out}\n")
