"""``paceline report``: one page of result folders, or a bundle of one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.console import ReportFile, say, terminal
from paceline.sim.errors import InputError


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="result folders; bundles of others (FILE) too")
    ],
    out: ReportFile = None,
    bundle: Annotated[
        bool,
        typer.Option(
            "--bundle", help="write no page, but one file of a 'validate' folder that can be sent to others"
        ),
    ] = False,
) -> None:
    """Write one page: who wins, by how much, and why. It needs no other file.

    Its tables and figures are written beside it, and the comparison of a validation is printed as well. A
    prediction that lies beside a measurement over another transport is made again over that one, and the page
    has both. With --bundle: the scenario, probes, both kinds of runs and versions, without the names of hosts
    and users, and without paths.
    """
    from paceline.extras.report import bundle as bundles
    from paceline.extras.report.beside import is_sweep, price_again, read_sweep
    from paceline.reports import page, sweep_page
    from paceline.reports.tables import render_comparison
    from paceline.sim.config.files import is_file, make_temporary_folder
    from paceline.sim.records.folder import describe_caveat, read_validation
    from paceline.sim.scenario.ready import refuse_scenarios

    refuse_scenarios(folders)
    if bundle:
        if len(folders) > 1:
            raise InputError("--bundle takes one folder")
        out = Path("bundle.json") if out is None else out
        bundles.write_bundle(folders[0], out)
        say(f"wrote {out}: read it before you send it")
        return
    out = Path("report.html") if out is None else out
    if not out.name:
        raise InputError(f"{out} is a folder: name a file, such as report.html")
    files = out.with_name(f"{out.stem}-files")
    if is_sweep(folders[0]):
        if len(folders) > 1:
            raise InputError(f"{folders[0]} is a sweep, which has a page of its own")
        answer, runs = read_sweep(folders[0])
        sweep_page.build(answer, out, files, runs)
        say(f"wrote {out} and {files}")
        return
    with make_temporary_folder() as scratch:
        own = [path for path in folders if not is_file(path)]
        opened = {
            path: bundles.unpack(path, Path(scratch) / f"bundle-{number}")
            for number, path in enumerate(folders)
            if path not in own
        }
        shown = [opened[path][0] if path in opened else path for path in folders]
        repeat = partial(price_again, scratch=Path(scratch), say=say) if len(own) > 1 else None
        incomplete = page.build(shown, out, files, repeat)
        for comparison in filter(None, map(read_validation, shown)):
            terminal().print(render_comparison(comparison))
    for path, (_, content) in opened.items():
        say(bundles.describe_bundle(path, content))
    for caveat in [*filter(None, map(describe_caveat, own)), *incomplete]:
        say(caveat)
    say(f"wrote {out} and {files}: tables and figures for papers")
