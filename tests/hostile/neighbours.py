"""Others at the same files: users who may not, commands at once, hands that move what is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.hostile.surroundings import Surrounding

_RANK: Final = (
    "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 $PYTHON -m paceline.realrun s.yaml"
)
_OPEN: Final = "chmod 777 .; "
_BOTH: Final = "paceline {0} 2>one & paceline {0} 2>two; b=$?; wait $!; a=$?; cat one two >&2; rm one two; "
"""The same command twice at once; ``$a`` and ``$b`` are their statuses."""
_REFUSED: Final = '[ "$a$b" = 02 ] || [ "$a$b" = 20 ] || [ "$a$b" = 00 ]'
"""One was refused; or, where the first had ended before the second looked, none."""
_LONG: Final = "--set stop.max_iterations=400 --set gradients=looped --set repeats=3 --jobs 1 --out new"
_MEANWHILE: Final = (
    f"paceline simulate s.yaml {_LONG} >/dev/null & "
    "for i in $(seq 600); do [ -d new/parts/run-000000 ] && break; sleep 0.1; done; {}; wait $!"
)
"""A simulation, and what somebody does once its first run is complete."""
PERMISSIONS: Final[Mapping[str, Surrounding]] = {
    "scenario": Surrounding("chmod 600 s.yaml; nobody paceline check s.yaml", 2, ("s.yaml", "not readable")),
    "scenario-folder": Surrounding(
        "mkdir -m 700 d; cp s.yaml d; chown 65534 d; nobody paceline check d/s.yaml",
        2,
        ("d/s.yaml", "ermission"),
        ("d",),
    ),
    "out": Surrounding("nobody paceline simulate s.yaml --out new", 2, ("new", "ermission")),
    "out-sweep": Surrounding(
        "nobody paceline sweep s.yaml --grid seed=1,2 --out new", 2, ("new", "ermission")
    ),
    "out-realrun": Surrounding(
        "nobody paceline realrun s.yaml --processes --out new", 2, ("new", "ermission")
    ),
    "out-report": Surrounding("nobody paceline report r", 2, ("report.html", "ermission")),
    "out-probe": Surrounding("nobody paceline probe s.yaml --out m.json", 2, ("m.json", "Permission denied")),
    "out-new": Surrounding("nobody paceline new campus c.yaml", 2, ("cannot write", "ermission")),
    "results": Surrounding(_OPEN + "chmod 700 r; nobody paceline report r", 2, ("not readable",), ("r",)),
    "results-replay": Surrounding("chmod 700 r; nobody paceline replay r", 2, ("not readable",), ("r",)),
    **{
        f"results-{name}": Surrounding(f"{_OPEN}chmod 600 r/{name}; nobody paceline report r", 2, (name,))
        for name in ("summary.json", "metrics.parquet", "events.parquet", "checksums.sha256")
    },
    "results-of-another": Surrounding(
        _OPEN + "nobody paceline simulate s.yaml --out r --force", 2, ("r/parts", "ermission")
    ),
    "results-in-a-sticky-folder": Surrounding(
        "chmod 1777 .; nobody paceline simulate s.yaml --out r --force", 2, ("r/parts", "ermission")
    ),
    "figures-of-another": Surrounding(
        _OPEN
        + "paceline report r 2>/dev/null; chown 65534 report-files report.html; nobody paceline report r",
        2,
        ("cannot write", "report-files: Permission denied"),
        ("report.html", "report-files"),
    ),
    "lock-of-another": Surrounding(
        _OPEN + "echo process 1 >.new.lock; chmod 600 .new.lock; chown 65534 .new.lock; "
        "nobody paceline simulate s.yaml --out new",
        2,
        (".new.lock",),
        (".new.lock",),
    ),
    "secret-of-another": Surrounding(
        f'mkdir -m 777 t; mkdir t/paceline-0; chown 65534 t/paceline-0; nobody env TMPDIR="$TOP/t" {_RANK}',
        2,
        ("PACELINE_SECRET",),
        ("t",),
    ),
}
"""What another user, who has no rights here, may not read or write."""

TOGETHER: Final[Mapping[str, Surrounding]] = {
    "two-reports-over-an-older-one": Surrounding(
        "paceline report r 2>/dev/null; " + _BOTH.format("report r") + _REFUSED,
        0,
        (),
        ("report.html", "report-files"),
    ),
    "two-realruns": Surrounding(
        _BOTH.format("realrun s.yaml --processes --out new") + '[ "$a$b" = 02 ] || [ "$a$b" = 20 ]',
        0,
        ("new",),
        ("new",),
    ),
}
"""Two commands at once that write to the same place."""

MEANWHILE: Final[Mapping[str, Surrounding]] = {
    "removed": Surrounding(_MEANWHILE.format("rm -rf new"), 0, ("new was removed or renamed",), ("new",)),
    "renamed": Surrounding(
        _MEANWHILE.format("mv new old"), 0, ("new was removed or renamed",), ("new", "old")
    ),
    "other-results": Surrounding(
        _MEANWHILE.format("mv new old; cp -r r new"),
        2,
        ("has taken its place", "move it back"),
        ("new", "old"),
    ),
    "now-a-file": Surrounding(_MEANWHILE.format("rm -rf new; echo mine >new"), 2, ("new",), ("new",)),
    "with-a-stranger": Surrounding(_MEANWHILE.format("echo mine >new/mine"), 2, ("holds mine",), ("new",)),
}
"""A folder in which somebody else is busy while it is written."""
