"""Command lines that are wrong, files of measurements, and profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.hostile.sandbox import Case
from tests.hostile.scenarios import BY_HEART, GOOD, LONG, text_of

_TEXT: Final = text_of(GOOD)
_HERE: Final[dict[str, str | bytes]] = {
    "s.yaml": _TEXT, "file": "kept", "folder/kept": "kept", "circle": "->circle",
}  # fmt: skip

LINES: Final[Mapping[str, tuple[str, str]]] = {
    "no-command": ("simulat s.yaml", "simulat"),
    "no-scenario": ("simulate", "SCENARIO"),
    "two-scenarios": ("simulate s.yaml s.yaml", "s.yaml"),
    "unknown-option": ("simulate s.yaml --ot r", "--ot"),
    "no-value": ("simulate s.yaml --out", "--out"),
    "device": ("simulate s.yaml --device tpu", "--device"),
    "engine": ("simulate s.yaml --engine warp", "--engine"),
    "trace-without-out": ("simulate s.yaml --trace", "--trace"),
    "profile-missing": ("simulate s.yaml --profile nothing.yaml", "nothing.yaml"),
    "profile-endless": ("simulate s.yaml --profile /dev/zero", "/dev/zero"),
    "set-empty": ("simulate s.yaml --set ", "--set"),
    "set-no-value": ("simulate s.yaml --set seed", "--set seed"),
    "set-no-key": ("simulate s.yaml --set =5", "--set"),
    "set-dots": ("simulate s.yaml --set ...=5", "--set"),
    "set-unknown": ("simulate s.yaml --set sede=5", "sede"),
    "set-far": ("simulate s.yaml --set schemes.7.x=5", "schemes.7"),
    "set-very-far": ("simulate s.yaml --set schemes." + "9" * 5000 + ".x=5", "schemes"),
    "set-negative": ("simulate s.yaml --set schemes.-1.x=5", "schemes"),
    "set-through": ("simulate s.yaml --set seed.x=5", "seed"),
    "set-deep": ("simulate s.yaml --set " + "a." * 5000 + "b=1", "--set"),
    "set-nested": ("simulate s.yaml --set seed=" + "[" * 5000, "--set"),
    "set-tag": ("simulate s.yaml --set seed=!!python/name:os.system", "--set"),
    "set-nan": ("simulate s.yaml --set workload.optimizer.lr=.nan", "lr"),
    "set-huge": (f"simulate s.yaml --set workload.batch_size={BY_HEART}", "batch_size"),
    "set-long": ("simulate s.yaml --set seed=" + "x" * 50_000, "seed"),
    "set-control": ("simulate s.yaml --set seed=\x1b[2J", "--set"),
    "out-file": ("simulate s.yaml --out file", "file"),
    "out-below-file": ("simulate s.yaml --out file/r", "file/r"),
    "out-device": ("simulate s.yaml --out /dev/null", "/dev/null"),
    "out-below-device": ("simulate s.yaml --out /dev/null/r", "/dev/null/r"),
    "out-folder": ("simulate s.yaml --out folder", "folder"),
    "out-forced": ("simulate s.yaml --out folder --force", "kept"),
    "out-here": ("simulate s.yaml --out .", "--force"),
    "out-here-forced": ("simulate s.yaml --out . --force", "no result of ours"),
    "out-proc": ("simulate s.yaml --out /proc/r", "/proc/r"),
    "out-sys": ("simulate s.yaml --out /sys/r", "/sys/r"),
    "out-long": (f"simulate s.yaml --out {LONG}", "File name too long"),
    "out-circle": ("simulate s.yaml --out circle", "circle"),
    "out-below-circle": ("simulate s.yaml --out circle/r", "circle"),
    "out-root": ("simulate s.yaml --out /", "/"),
    "timeout-nan": ("realrun s.yaml --processes --timeout nan", "--timeout"),
    "timeout-zero": ("realrun s.yaml --processes --timeout 0", "--timeout"),
    "timeout-negative": ("realrun s.yaml --processes --timeout -5", "--timeout"),
    "timeout-infinite": ("realrun s.yaml --processes --timeout inf", "--timeout"),
    "timeout-huge": ("realrun s.yaml --processes --timeout 1e300", "--timeout"),
    "timeout-word": ("realrun s.yaml --processes --timeout soon", "--timeout"),
    "timeout-slurm": ("realrun s.yaml --slurm --timeout nan", "--timeout"),
    "per-node-zero": ("realrun s.yaml --slurm --per-node 0", "--per-node"),
    "per-node-negative": ("realrun s.yaml --slurm --per-node -1", "--per-node"),
    "no-cluster": ("realrun s.yaml", "--processes"),
    "realrun-out-file": ("realrun s.yaml --processes --out file", "file"),
    "probe-no-out": ("probe s.yaml", "--out"),
    "validate-steps": ("validate s.yaml --steps 0", "--steps"),
    "validate-profile": ("validate s.yaml --profile /dev/zero", "/dev/zero"),
    "netem-host": ("netem s.yaml --host 9", "--host"),
    "netem-addresses": ("netem s.yaml --hosts a,b,c,d", "a"),
    "netem-interface": ("netem s.yaml --interface eth0;reboot", "interface"),
    "no-such-name": ("simulate nothing", "ready"),
    "new-unknown": ("new nothing x.yaml", "nothing"),
    "new-there": ("new campus file", "file"),
    "new-folder": ("new campus folder", "folder"),
    "new-nowhere": ("new campus nowhere/x.yaml", "nowhere"),
    "bundle-missing": ("report --bundle nowhere", "nowhere"),
    "bundle-of-file": ("report --bundle file", "file"),
    "bundle-of-folder": ("report --bundle folder", "folder"),
    "bundle-of-two": ("report --bundle folder folder", "--bundle"),
    "bundle-device": ("report --bundle /dev/zero", "/dev/zero"),
    "report-nothing": ("report", "DIR"),
    "report-missing": ("report nowhere", "nowhere"),
    "report-file": ("report file", "file"),
    "report-folder": ("report folder", "folder"),
    "report-device": ("report /dev/zero", "/dev/zero"),
    "report-long": (f"report {LONG}", LONG[:50]),
    "replay-missing": ("replay nowhere", "nowhere"),
    "replay-file": ("replay file", "file"),
    "calibrate-nothing": ("calibrate --out p.yaml", "MEASURED"),
    "calibrate-missing": ("calibrate nothing.json --out p.yaml", "nothing.json"),
    "calibrate-endless": ("calibrate /dev/zero --out p.yaml", "/dev/zero"),
    "calibrate-folder": ("calibrate folder --out p.yaml", "folder"),
    "calibrate-scenario": ("calibrate s.yaml --out p.yaml", "s.yaml"),
    "show-nothing": ("topology show ring", "--workers"),
    "show-unknown": ("topology show rnig --workers 4", "ring"),
    "show-zero": ("topology show ring --workers 0", "workers"),
    "show-negative": ("topology show ring --workers -4", "workers"),
    "show-huge": (f"topology show ring --workers {BY_HEART}", "workers"),
    "show-huge-complete": ("topology show complete --workers 10000000", "edges"),
    "show-weights": ("topology show ring --workers 4 --weights odd", "odd"),
    "show-seed": ("topology show ring --workers 4 --seed -1", "--seed"),
    "show-endless": ("topology show {file:/dev/zero} --workers 4", "/dev/zero"),
    "show-zero-file": ("topology show {file: /dev/zero} --workers 4", "/dev/zero"),
    "show-deep": ("topology show " + "[" * 5000 + " --workers 4", "NAME"),
    "show-empty": ("topology show  --workers 4", "must be"),
    "search-nothing": ("topology search", "--workers"),
    "search-zero": ("topology search --workers 0 --degree 2", "workers"),
    "search-degree": ("topology search --workers 8 --degree 9", "degree"),
    "search-odd": ("topology search --workers 7 --degree 3", "degree"),
    "search-moves": ("topology search --workers 8 --degree 3 --moves -1", "moves"),
    "search-restarts": ("topology search --workers 8 --degree 3 --restarts 0", "restarts"),
    "search-huge": (f"topology search --workers {BY_HEART} --degree 3", "workers"),
    "search-out": ("topology search --workers 8 --degree 3 --out g.txt", "g.txt"),
    "search-objective": ("topology search --workers 8 --degree 3 --objective odd", "odd"),
    "lab-missing": ("lab check nothing.yaml", "nothing.yaml"),
    "schema-more": ("schema x", "x"),
}
"""What follows ``paceline``, its words apart by blanks, and what the message names."""

MEASURED: Final[Mapping[str, str | bytes]] = {
    "empty": "", "text": "hello", "list": "[]", "number": "5", "nothing": "{}", "null": "null",
    "version": '{"version": 99}', "kind": '{"version": 1, "kind": "other"}', "only": '{"version": 1}',
    "nan": '{"version": NaN}', "inside": '{"version": 1, "trials": [NaN]}', "infinite": '{"version": 1e999}',
    "deep": '{"version": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep-inside": '{"version": 1, "settings": ' + "[" * 600 + "]" * 600 + "}",
    "digits": '{"version": ' + "9" * 10_000 + "}", "cut": '{"version": 1, "kind": "attach',
    "binary": bytes(range(256)), "twice": '{"version": 1, "version": 1}',
    "attached": '{"version": 1, "kind": "attached run"}',
    "attached-huge": '{"version": 1, "kind": "attached run", "made": "", "machine": "", "software": "", '
    '"hosts": [], "settings": {}, "scheme": {"all_reduce": {}}, "workers": 1000000000000, "seed": 0, '
    '"steps": 1, "parameters": 1, "bytes_per_parameter": 4.0, "moments": 0, "rows": []}',
}  # fmt: skip
"""What stands in a file where measurements should be."""


def cases() -> list[Case]:
    """All of them."""
    return [*lines(), *measured()]


def lines() -> Iterator[Case]:
    """Command lines: the message names the option, the argument or the file."""
    for name, (line, says) in LINES.items():
        words = line.replace("{file: ", "{file:\0").split(" ")
        argv = tuple(word.replace("\0", " ") for word in words)
        yield Case(f"line-{name}", argv, (says,), dict(_HERE))


def measured() -> Iterator[Case]:
    """Files of measurements: the message names the file."""
    for name, content in MEASURED.items():
        yield Case(
            f"measured-{name}", ("calibrate", "m.json", "--out", "p.yaml"), ("m.json",), {"m.json": content}
        )
