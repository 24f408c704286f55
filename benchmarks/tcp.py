"""Single messages between stock hosts of the lab, beside the law of ``paceline.sim.traffic.tcp.windows``.

    python -m benchmarks.tcp                       all congestion controls -> docs/tcp.md
    python -m benchmarks.tcp --congestion cubic    one of them, on standard output

One connection carries the messages of a row one after another, each when the receipt of the last one is
there (back to back), or a second after it (after idle). ``first``: a new connection's first message. Of the
messages of a state the fastest counts, predicted and measured: what else the machine does only adds to them.
Nothing is fitted: the law has the nominal latency and bandwidth, and Linux's constants.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.alone import leave_alone
from docs.make.page import renewed
from paceline.realrun.lab import Lab
from paceline.realrun.lab.probe import ProbeFlow
from paceline.realrun.lab.self_test import ProbeProcess
from paceline.sim.config.files import write_atomically
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import Congestion, NetworkSettings, TcpSettings
from paceline.sim.traffic.tcp.windows import Connection

PAGE: Final = Path("docs/tcp.md")
MARK: Final = "<!-- Below: python -m benchmarks.tcp -->\n"
CONTROLS: Final[tuple[Congestion, ...]] = ("cubic", "reno", "bbr")
BYTES_PER_S: Final = 12.5e6
LATENCIES_S: Final = (0.002, 0.02, 0.08)
SIZES_BYTES: Final = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
COUNT: Final = 4
"""Messages of a row, the first among them."""
IDLE_S: Final = 1.0
_HELLO_BYTES: Final = 8
_CONNECT_S: Final = 0.05


@dataclass(frozen=True)
class MessageRow:
    """A message of one size in one state of its connection.

    Attributes:
        congestion: control.
        latency_s: one way.
        num_bytes: of the message.
        state: first, back to back, or after idle.
        predicted_s, measured_s: from the start of sending to the last byte read.
    """

    congestion: Congestion
    latency_s: float
    num_bytes: int
    state: str
    predicted_s: float
    measured_s: float

    @property
    def error_pct(self) -> float:
        """Predicted over measured, less one."""
        return 100 * (self.predicted_s / self.measured_s - 1)


def predict_s(tcp: TcpSettings, latency_s: float, num_bytes: int, gap_s: float, count: int) -> list[float]:
    """How long each of ``count`` messages on a new connection takes; ``gap_s``: pause after a receipt."""
    connection = Connection(tcp, 2 * latency_s, BYTES_PER_S)
    now_s = leave_alone(connection, 0.0, _HELLO_BYTES, BYTES_PER_S) + 5 * latency_s + _CONNECT_S
    lasted = []
    for _ in range(count):
        arrival_s = leave_alone(connection, now_s, num_bytes, BYTES_PER_S) + latency_s
        lasted.append(arrival_s - now_s)
        now_s = arrival_s + latency_s + gap_s
    return lasted


def pair(latency_s: float) -> Network:
    """Two hosts."""
    settings = {"latency": f"{latency_s} s", "bandwidth": f"{8 * BYTES_PER_S} bit/s"}
    return build_network(NetworkSettings.model_validate(settings), 2)


def measure(tcp: TcpSettings, latencies_s: Sequence[float], sizes: Sequence[int]) -> Iterator[MessageRow]:
    """Measure all rows of one congestion control.

    Raises:
        InputError: this machine cannot run a lab, or has no such congestion control.
    """
    with Lab(pair(latencies_s[0]), tcp=tcp) as lab, ExitStack() as stack:
        probes = [stack.enter_context(closing(ProbeProcess(lab, host))) for host in range(2)]
        for latency_s in latencies_s:
            lab.reconfigure(pair(latency_s))
            for num_bytes in sizes:
                first, predicted = [], 0.0
                for gap_s, state in ((0.0, "back to back"), (IDLE_S, "after idle")):
                    start_s = time.monotonic() + _CONNECT_S + 5 * latency_s
                    flow = ProbeFlow(lab.address(1), num_bytes, COUNT, start_s, gap_s)
                    (times,) = probes[0].run(flow)
                    lasted = [end - start for start, end in times]
                    first.append(lasted[0])
                    predicted, *later = predict_s(tcp, latency_s, num_bytes, gap_s, COUNT)
                    yield MessageRow(
                        tcp.congestion, latency_s, num_bytes, state,
                        min(later), min(lasted[1:]),
                    )  # fmt: skip
                yield MessageRow(tcp.congestion, latency_s, num_bytes, "first", predicted, min(first))


def render(rows: Sequence[MessageRow]) -> str:
    """A table of all rows, the states side by side, and the errors of each congestion control and state."""
    states = list(dict.fromkeys(row.state for row in rows))
    lines = [
        "Measured ms, and the error of the prediction:\n",
        f"| congestion | one way | kB | {' | '.join(states)} |",
        "| --- | ---: | ---: |" + " ---: |" * len(states),
    ]
    cells: dict[str, list[str]] = {}
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        message = f"{row.congestion} | {1e3 * row.latency_s:g} ms | {row.num_bytes / 1e3:,.0f}"
        cells.setdefault(message, []).append(f"{1e3 * row.measured_s:.1f}, {row.error_pct:+.1f} %")
        for state in (row.state, "all"):
            errors.setdefault((row.congestion, state), []).append(row.error_pct)
    lines += [f"| {message} | {' | '.join(each)} |" for message, each in cells.items()]
    lines += [
        "",
        "| congestion | state | number | mean error | worst |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for (congestion, state), known in errors.items():
        mean = statistics.fmean(abs(each) for each in known)
        lines.append(
            f"| {congestion} | {state} | {len(known)} | {mean:.1f} % | {max(known, key=abs):+.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure one congestion control, or all and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcp")
    parser.add_argument("--congestion", choices=CONTROLS, help="only this one, on standard output")
    parser.add_argument(
        "--latency", type=float, action="append", metavar="S", help="only this one, in seconds"
    )
    arguments = parser.parse_args()
    controls = CONTROLS if arguments.congestion is None else (arguments.congestion,)
    rows = [
        row
        for congestion in controls
        for row in measure(TcpSettings(congestion=congestion), arguments.latency or LATENCIES_S, SIZES_BYTES)
    ]
    table = render(rows)
    sys.stdout.write(table)
    if arguments.congestion is None and arguments.latency is None:
        write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, "\n" + table))


if __name__ == "__main__":
    main()
