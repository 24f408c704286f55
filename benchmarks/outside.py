"""Predictions of other people's measurements: collectives over gloo and NCCL on hosts with netem.

    python -m benchmarks.outside                                 the rows of outside.csv -> docs/outside.md
    python -m benchmarks.outside ROWS.csv                        other rows, on standard output
    python -m benchmarks.outside --row all_reduce 16 '5 ms' '2 Gbit/s' nccl '128 MiB' 1000

A row is a collective (all_reduce, broadcast, reduce, reduce_scatter, all_gather, all_to_all or
point_to_point), the number of workers, one-way latency, bandwidth (empty: not limited by netem), transport,
payload and the measured milliseconds. The payload is a worker's whole tensor; of reduce_scatter and
all_gather that of all shards.

Nothing is fitted, except in the column "fitted": gloo's software overhead per message, chosen on the
all-reduces of the smallest group in outside.csv and used for all rows over gloo.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from scipy.optimize import minimize_scalar

from docs.make.page import renewed
from paceline.sim.collectives.schedule import Round, Schedule
from paceline.sim.config.files import write_atomically
from paceline.sim.config.settings import Settings
from paceline.sim.config.tables import read_table
from paceline.sim.config.units import parse_bytes, parse_seconds
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.stock_tcp import RECEIVE_BUFFER_BYTES, WINDOW_SHARE
from paceline.sim.network.transport import GLOO_FACTORS
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.scheme import Scheme

ROWS: Final = Path(__file__).with_name("outside.csv")
PAGE: Final = Path("docs/outside.md")
MARK: Final = "<!-- Below: python -m benchmarks.outside -->\n"
UNLIMITED: Final = {"gloo": "5 Gbit/s", "nccl": "10 Gbit/s"}
"""Hosts without netem: a single TCP flow of gloo's, and the network card, which NCCL's sockets fill."""
PAUSE_S: Final = 1.0
"""Between two messages in the script that measured them (pytorch_send_recv_test.py)."""
_HALF: Final = f"receive_buffer: {RECEIVE_BUFFER_BYTES / 2 / WINDOW_SHARE:.0f} B"
"""Half of it was the window (tcp_adv_win_scale 1): that of a smaller buffer today."""
STOCK: Final = {"gloo": f", tcp: {{{_HALF}}}", "nccl": f", tcp: {{connections: 16, {_HALF}}}"}
"""Linux 4.20 to 6.5, as Ubuntu 18.04 and 20.04 have it: cubic, 10 segments, tcp_rmem up to 6 MiB with
tcp_adv_win_scale 1, tcp_wmem up to 4 MiB, slow start after idle. NCCL's sockets on AWS: 2 threads of 8."""
LONG_S: Final = 1e-3
"""From this latency on a single message shows how TCP opens its window, which is no part of a transport."""
COLUMNS: Final = ("collective", "workers", "latency", "bandwidth", "transport", "payload", "measured_ms")
HEAD: Final = (
    "collective | n | latency | bandwidth | transport | payload | predicted ms | measured ms | error "
    "| fitted | stock"
)


@dataclass(frozen=True)
class Row:
    """One measurement; the texts are as they stand in the file."""

    collective: str
    workers: int
    latency: str
    bandwidth: str
    transport: str
    payload: str
    measured_ms: float

    @property
    def limited(self) -> bool:
        """Whether netem limited the rate, so that the prediction's bandwidth is not a guess."""
        return bool(self.bandwidth)


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file with ``COLUMNS``.

    Raises:
        InputError: it cannot be read, or has other columns.
    """
    table = read_table(path)
    at = [table.find(name) for name in COLUMNS]
    return [row_of([cells[column] for column in at]) for _, cells in table.rows]


def row_of(cells: Sequence[str]) -> Row:
    """A row from its seven texts."""
    collective, workers, latency, bandwidth, transport, payload, measured = (cell.strip() for cell in cells)
    return Row(collective, int(workers), latency, bandwidth, transport, payload, float(measured))


def predict_ms(row: Row, overhead_s: float | None = None) -> float:
    """Milliseconds until the last worker is through, on tuned hosts.

    Args:
        row: what was measured.
        overhead_s: software overhead of a message, in the place of gloo's packaged one.

    Raises:
        InputError: a quantity cannot be read.
        RunError: there is no such collective.
    """
    return 1e3 * _wall_clock_s(row, "", overhead_s)


def predict_stock_ms(row: Row) -> float:
    """Milliseconds of a message on stock hosts, after another one and a pause.

    Raises:
        InputError: a quantity cannot be read.
        RunError: there is no such collective.
    """
    hosts = STOCK[row.transport]
    twice_s = _wall_clock_s(row, hosts, None, again=True)
    return 1e3 * (twice_s - PAUSE_S - _wall_clock_s(row, hosts, None))


def _wall_clock_s(row: Row, hosts: str, overhead_s: float | None, again: bool = False) -> float:
    known = {name for name, _ in _PROGRAMS}
    if row.collective not in known:
        raise RunError(f"no collective is called {row.collective}; choose from {', '.join(sorted(known))}")
    scenario = parse(
        _SCENARIO.format(
            row=row,
            bandwidth=row.bandwidth or UNLIMITED[row.transport],
            bytes=parse_bytes(row.payload),
            hosts=hosts,
        )
    )
    once = _PROGRAMS[row.collective, row.transport]
    program = _repeat(once) if again else once
    job = clock_only(prepare(scenario, scenario.schemes[0], 0))
    scheme = Scheme("outside", program, Settings, True, lambda options, workers: None)
    start = torch.zeros(row.workers)  # a number for each worker's share
    job = replace(
        job,
        scheme=scheme,
        options=Settings(),
        start=start,
        bytes_per_parameter=parse_bytes(row.payload) / len(start),
    )
    if (row.collective, row.transport) == ("reduce", "gloo"):
        job = replace(job, all_reduce="benchmarks.outside:gloo_reduce")
    if overhead_s is not None:
        job = replace(job, transfer=replace(job.transfer, overhead_s=overhead_s))
    run = simulate_job(job)
    if run.status != "completed":
        raise RunError(run.message)
    return run.wall_clock_s


_SCENARIO: Final = """\
name: outside
workload: {{timing_only: true, payload: {bytes} B}}
cluster:
  workers: {row.workers}
  compute: {{time: 1 us}}
  network: {{latency: {row.latency}, bandwidth: {bandwidth}, transport: {row.transport}{hosts}}}
schemes: [all_reduce]
stop: {{max_iterations: 1}}
"""


def gloo_reduce(workers: int, bytes: int) -> Schedule:
    """gloo's reduce: segments around the ring, two in flight, then everybody sends its chunk to rank 0.

    Of all segments only the last two are not passed on, where (n - 1) / n of them would do (read in gloo's
    reduce.cc at 55b6bf7).
    """
    segments = max(-(-bytes // 2**20), 2 * workers)
    segments += -segments % workers
    length = -(-bytes // segments)
    length += -length % 4
    lengths = [max(0, min(length, bytes - k * length)) for k in range(segments)]
    per_chunk = segments // workers
    chunks = [sum(lengths[rank * per_chunk : (rank + 1) * per_chunk]) for rank in range(workers)]
    table = []
    for rank in range(workers):
        first = (rank + 1) * per_chunk
        rounds = [
            Round(
                _if_any((rank + 1) % workers, lengths[(first + per_chunk + i) % segments]),
                _if_any((rank - 1) % workers, lengths[(first + i) % segments]),
            )
            for i in range(segments - 2)
        ]
        idle = Round((), ())  # the second phase begins when the first is complete
        if rank:
            last = Round((), _if_any(0, chunks[rank]))
        else:
            last = Round(tuple(m for peer in range(1, workers) for m in _if_any(peer, chunks[peer])), ())
        table.append((*rounds, idle, last))
    return Schedule(tuple(table), 2)


def _if_any(peer: int, num_bytes: int) -> tuple[tuple[int, int], ...]:
    return ((peer, num_bytes),) if num_bytes else ()


_Program = Callable[[Worker, Settings], Coroutine[Any, Any, None]]


def _repeat(program: _Program) -> _Program:
    async def again(worker: Worker, options: Settings) -> None:
        await program(worker, options)
        await worker.sleep(PAUSE_S)
        await program(worker, options)

    return again


async def _all_reduce(worker: Worker, options: Settings) -> None:
    await worker.all_reduce(worker.start)


async def _broadcast(worker: Worker, options: Settings) -> None:
    await worker.broadcast(worker.start, 0)


async def _reduce_scatter(worker: Worker, options: Settings) -> None:
    await worker.reduce_scatter(worker.start)


async def _all_gather(worker: Worker, options: Settings) -> None:
    await worker.all_gather_shards(worker.start[:1], worker.size)


async def _all_to_all(worker: Worker, options: Settings) -> None:
    others = tuple(tuple(b for b in range(worker.size) if b != a) for a in range(worker.size))
    weights = tuple((1.0 / worker.size,) * (worker.size - 1) for _ in others)
    await worker.mix(Pattern((1.0 / worker.size,) * worker.size, others, weights), worker.start[:1])


async def _one_way(worker: Worker, options: Settings) -> None:
    """From worker 0 to worker 1, as part of a pattern, which NCCL carries."""
    rest = worker.size - 2
    pattern = Pattern((1.0, 0.5, *(1.0,) * rest), ((), (0,), *((),) * rest), ((), (0.5,), *((),) * rest))
    await worker.mix(pattern, worker.start)


async def _message(worker: Worker, options: Settings) -> None:
    if worker.rank == 0:
        await worker.send(1, worker.start)
    elif worker.rank == 1:
        await worker.receive(0, worker.start)


_PROGRAMS: Final = {
    ("all_reduce", "gloo"): _all_reduce,
    ("all_reduce", "nccl"): _all_reduce,
    ("broadcast", "gloo"): _broadcast,
    ("broadcast", "nccl"): _broadcast,
    ("reduce", "gloo"): _all_reduce,  # with ``gloo_reduce`` for its algorithm
    ("reduce", "nccl"): _broadcast,  # along the same chain, the other way round
    ("reduce_scatter", "gloo"): _reduce_scatter,
    ("reduce_scatter", "nccl"): _reduce_scatter,
    ("all_gather", "gloo"): _all_gather,
    ("all_gather", "nccl"): _all_gather,
    ("all_to_all", "gloo"): _all_to_all,
    ("all_to_all", "nccl"): _all_to_all,
    ("point_to_point", "gloo"): _message,
    ("point_to_point", "nccl"): _one_way,
}


def fit_overhead_s(rows: Iterable[Row]) -> tuple[float, int]:
    """gloo's overhead per message on the smallest group's all-reduces at limited rate, and its size."""
    known = [row for row in rows if (row.collective, row.transport) == ("all_reduce", "gloo") and row.limited]
    workers = min(row.workers for row in known)
    smallest = [row for row in known if row.workers == workers]

    def squares(overhead_s: float) -> float:
        return sum((predict_ms(row, overhead_s) / row.measured_ms - 1) ** 2 for row in smallest)

    return float(minimize_scalar(squares, bounds=(0.0, 5e-3), method="bounded").x), workers


def render(rows: Sequence[Row]) -> str:
    """A table of all rows, and the errors of each collective and transport."""
    fit_s, fit_workers = fit_overhead_s(read_rows(ROWS))
    lines = [f"| {HEAD} |", "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    errors: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        predicted_ms = predict_ms(row)
        error_pct = 100 * (predicted_ms / row.measured_ms - 1)
        netem = "limited rate" if row.limited else "no limit"
        if row.limited and row.collective == "point_to_point" and parse_seconds(row.latency) >= LONG_S:
            netem = "limited rate, latency"
        errors.setdefault((row.collective, row.transport, netem), []).append(error_pct)
        fitted = ""
        if row.transport == "gloo":
            fitted_pct = 100 * (predict_ms(row, fit_s) / row.measured_ms - 1)
            fitted = f"{fitted_pct:+.1f} %"
            if row.workers > fit_workers:
                key = (row.collective, "gloo, fitted", f"{netem}, n > {fit_workers}")
                errors.setdefault(key, []).append(fitted_pct)
        stock = ""
        if row.collective == "point_to_point":
            stock_pct = 100 * (predict_stock_ms(row) / row.measured_ms - 1)
            stock = f"{stock_pct:+.1f} %"
            delayed = "delay only" if not row.limited and parse_seconds(row.latency) >= LONG_S else netem
            errors.setdefault((row.collective, f"{row.transport}, stock hosts", delayed), []).append(
                stock_pct
            )
        lines.append(
            f"| {row.collective} | {row.workers} | {row.latency} | {row.bandwidth or 'as it is'} | "
            f"{row.transport} | {row.payload} | {predicted_ms:.0f} | {row.measured_ms:g} | "
            f"{error_pct:+.1f} % | {fitted} | {stock} |"
        )
    packaged = GLOO_FACTORS["overhead_s"]
    lines += [
        "",
        f"gloo's software overhead per message: packaged {1e3 * packaged.value:.2f} ms "
        f"({1e3 * packaged.low:.2f} to {1e3 * packaged.high:.2f}), fitted on n = {fit_workers} "
        f"{1e3 * fit_s:.2f} ms.",
        "",
        "| collective | transport | rows | number | mean error | worst |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for (collective, transport, netem), known in errors.items():
        mean = statistics.fmean(abs(each) for each in known)
        worst = max(known, key=abs)
        lines.append(
            f"| {collective} | {transport} | {netem} | {len(known)} | {mean:.1f} % | {worst:+.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Predict the rows of the file, or of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outside")
    parser.add_argument("file", nargs="?", type=Path, help=f"CSV with the columns {', '.join(COLUMNS)}")
    parser.add_argument(
        "--row", action="append", nargs=len(COLUMNS), metavar="CELL", help="a row, instead of a file"
    )
    arguments = parser.parse_args()
    if arguments.row is not None:
        sys.stdout.write(render([row_of(cells) for cells in arguments.row]))
    elif arguments.file is not None:
        sys.stdout.write(render(read_rows(arguments.file)))
    else:
        table = render(read_rows(ROWS))
        sys.stdout.write(table)
        write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, "\n" + table))


if __name__ == "__main__":
    main()
