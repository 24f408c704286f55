"""The numbers of the README and of docs/accuracy.md, from the pages and the run that they come from.

    make figures

The table of errors comes from docs/board.md, docs/validation*.md and docs/measurements.md, which have
commands of their own, whole in docs/accuracy.md; the README has five rows, one from docs/learning-board.md.
The sentences about the demo come from ``VERDICT``, which ``docs.make.picture`` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.board.tables import names
from paceline.sim.config.files import write_atomically

DOCS: Final = Path(__file__).parents[1]
PAGE: Final = DOCS.parent / "README.md"
ACCURACY: Final = DOCS / "accuracy.md"
VERDICT: Final = DOCS / "images" / "four-regions.json"
_HEAD: Final = (
    "| measured | mean | worst | winner, or close decisions, right |\n| --- | ---: | ---: | --- |\n"
)

_SHORT_HEAD: Final = "| measured | mean | worst | without Paceline |\n| --- | ---: | ---: | --- |\n"

Row = Mapping[str, str]

_LAB: Final = {
    "validation": "lab, tuned hosts: real processes, real TCP, an emulated network; "
    "{} cells ([each of them]({}))",
    "validation-stock": "lab, stock hosts: TCP as the kernel comes with it; the same {} cells "
    "([each of them]({}), two of them traced to [mend the law](docs/tcp.md))",
    "validation-stock-fifo": "the same with first-in-first-out queues; the {} worst of those cells, each run "
    "two to eight times ([each of them]({}), [which were traced](docs/tcp.md))",
}
_BOARD: Final = {
    "netem_collectives": "collectives over gloo and NCCL on AWS hosts with netem; {} rows",
    "netem_data_parallel": "three ways to average gradients over NCCL on those hosts; {} rows",
    "multi_cloud": "hivemind across regions and clouds; {} rounds",
    "hivemind_a10": "hivemind with eight models on two to eight A10 of one site; {} rounds",
    "hybrid_cloud": "hivemind on an office's GPU and a cloud's; {} rounds",
    "dlperf": "BERT-base and ResNet-50 by PyTorch on four servers of eight V100, from one GPU's speed; "
    "{} runs",
    "dlperf_frameworks": "the same by MXNet, Paddle, PyTorch and TensorFlow; {} runs",
    "ft_diloco": "torchft's DiLoCo over gloo; {} cycles",
    "diloco_measured": "DDP, local SGD and DiLoCo on L40S behind a token bucket; {} runs",
    "diloco_crashes": "what three crashes cost DDP and DiLoCo on four A100, beside runs without; "
    "{} differences",
    "bagua": "DDP, Horovod and Bagua's decentralised pairs with 128 V100; {} points of two figures",
    "bluefog": "Horovod and BlueFog with 4 to 128 V100; {} bars",
    "decent_dp": "DDP, SGP and Decent-DP on A40, T4 and A100; {} bars",
    "nccl_hosts": "NCCL's all-reduce on 2 to 64 hosts, from logs of nccl-tests; {} rows",
    "azure_horovod": "ResNets by Horovod on Azure; {} bars",
    "threads": "Horovod and gloo, from public threads; {} rows",
}
_WORST: Final[Mapping[str, str]] = {
    "dlperf_frameworks": "a framework whose GPUs slow one another",
    "diloco_measured": "a bandwidth that was measured with one connection; next worst {next}",
    "bagua": "decentralised pairs at 1 ms of latency (DDP alone: mean {mean}, worst {worst})",
    "bluefog": "Horovod on 128",
    "decent_dp": "a graph whose bytes the stated network cannot carry; without it {worst}",
    "nccl_hosts": "cards without GPUDirect; TCP on hosts of four GPUs {worst}",
    "threads": "VGG-16 over TCP at 25 Gbit/s",
}
"""What the worst row of a table is; ``mean`` and ``worst`` are those of the rows that ``_SOME`` keeps."""
_SOME: Final[Mapping[str, Callable[[Row], bool]]] = {
    "bagua": lambda row: row["system"] == "ddp",
    "decent_dp": lambda row: row["method"] != "exponential",
    "nccl_hosts": lambda row: row["gpus"] == "4" and row["transport"].startswith("TCP"),
}


def with_all_rows(page: str) -> str:
    """docs/accuracy.md with its table made anew; ``ValueError`` if it has lost it."""
    rows = [*_lab(), *_board(), *_own(), "| NCCL, a run of ours | not yet run | | |"]
    return _with_rows(page, _HEAD, [row.replace("(docs/", "(") for row in rows])


def _with_rows(page: str, head: str, rows: Sequence[str]) -> str:
    before, there, rest = page.partition(head)
    if not there:
        raise ValueError(f"the page has lost the table under {head.splitlines()[0]!r}")
    _, _, after = rest.partition("\n\n")
    return before + head + "\n".join(rows) + "\n\n" + after


def renewed(page: str) -> str:
    """The README with its numbers made anew.

    Raises:
        ValueError: it has lost the table, or a sentence with numbers.
    """
    text = _with_rows(page, _SHORT_HEAD, [*_short_lab(), *_short_others(), _learning()])
    for pattern, numbers in _sentences():
        sentence = re.search(pattern.replace(" ", r"\s"), text)  # lines break anywhere
        if sentence is None:
            raise ValueError(f"the README has lost the sentence {pattern!r}")
        for place, number in reversed([*enumerate(numbers, 1)]):
            text = text[: sentence.start(place)] + number + text[sentence.end(place) :]
    return text


def _sentences() -> Iterator[tuple[str, Sequence[str]]]:
    """Patterns of sentences, and the numbers that belong into their groups."""
    demo = json.loads(VERDICT.read_text(encoding="utf-8"))
    ratios = [demo["break_even"][key]["median"] for key in ("examples", "here")]
    yield (
        r"verdict: AD-PSGD first, (\S+) times as fast as all-reduce, as long as it needs fewer than (\S+)"
        r" times its examples; this small task says (\d\S*\d)\.",
        [f"{ratio:.2f}" for ratio in (demo["factor"], *ratios)],
    )
    floor = re.search(r"Noise floor, real against real, mean absolute: (\S+) %", _read("validation"))
    yield r"Two real runs in that lab differ by (\S+) %", [f"{float(floor[1]):.1f}" if floor else ""]


def _read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def _tables(text: str, first: str) -> list[Row]:
    """Rows of the tables whose first column is ``first``."""
    rows: list[Row] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif head[0] == first and not cells[0].startswith("---"):
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def _lab() -> Iterator[str]:
    for page, what in _LAB.items():
        text = _read(page)
        errors = [_number(row["(b) wall"]) for row in _tables(text, "cell")]
        races = re.findall(r"(\S+) predicted, (\S+) measured first at the target", text)
        right = f"{sum(one == other for one, other in races)} of {len(races)}" if races else "-"
        label = what.format(len(errors), f"docs/{page}.md")
        yield f"| {label} | {_percent(mean(errors))} | {_percent(max(errors))} | {right} |"


def _scores() -> dict[str, Row]:
    return {
        name: row
        for row in _tables(_read("board"), "table")
        for name in names()
        if f"/{name}/" in row["table"]
    }


def _short_lab() -> Iterator[str]:
    """The lab on tuned hosts, with computations that are padded to their time, and that are not."""
    page = _read("validation")
    padded = [_number(row["(b) wall"]) for row in _tables(page, "cell")]
    bare = [
        _number(row["error"]) for row in _tables(page.partition("## (c) ")[2], "scheme") if "error" in row
    ]
    lab = "lab: real processes, real TCP, an emulated network; "
    for what, errors in (
        (f"{lab}{len(padded)} cells", padded),
        (f"the same without padding: {len(bare)} schemes whose workers share two cores", bare),
    ):
        yield f"| {what} | {_percent(mean(errors))} | {_percent(max(errors))} | |"


def _short_others() -> Iterator[str]:
    """Others' clusters whose inputs are of the best grade, and all of them."""
    grade = next(row for row in _tables(_read("board"), "grade"))
    rows = [_scores()[name] for name in _BOARD]
    number = sum(int(row["rows"]) for row in rows)
    for what, row, worst in (
        (f"whose rates and steps were measured; {grade['rows']} rows", grade, grade["worst"]),
        (
            f"all; {number} rows, {sum(map(_blind, rows))} predicted before they were opened",
            _scored("all, by rows"),
            max((row["worst"] for row in rows), key=_number),
        ),
    ):
        yield (
            f"| [clusters of others](docs/board.md), {what} | {row['mean']} | {_percent(_number(worst))} "
            f"| spreadsheets {row['naive']} and {row['expert']} |"
        )


def _learning() -> str:
    """Which scheme ends lowest, as the proxy of a model without curves has it."""
    page = _read("learning-board")
    regret = re.search(
        r"at any time: mean regret of n = (\d+) sources in \d+ tables: ([\d.]+) nats, of the rule ([\d.]+)",
        page,
    )
    pairs = re.search(r"at any time: of \d+ pairs (\d+) are settled \(\d+%\), (\d+) of them wrong", page)
    if regret is None or pairs is None:
        raise ValueError("docs/learning-board.md has lost its summary: python -m benchmarks.learning")
    sources, ours, rule = regret.groups()
    return (
        "| [who ends lowest](docs/learning-board.md), without curves; "
        f"{sources} sources of others, own trainings | {float(ours):.2f} nats "
        f"| {pairs[2]} of {pairs[1]} settled orders wrong | a rule of two lines {float(rule):.2f} nats |"
    )


def _scored(name: str) -> Row:
    """A row of the board's first table."""
    return next(row for row in _tables(_read("board"), "table") if row["table"] == name)


def _decided(name: str) -> str:
    """How many of a table's close decisions come out right."""
    rows = [row for row in _tables(_read("board"), "decisions") if row["decisions"] == name]
    return next((row["close"] for row in rows if not row["close"].endswith("of 0")), "-")


def _blind(row: Row) -> int:
    """Number of rows that were predicted before they were opened."""
    known = row["predicted before opened"]
    if count := re.match(r"\d+", known):
        return int(count[0])
    return 0 if known.startswith("no row") else int(row["rows"])


def _board() -> Iterator[str]:
    scores = _scores()
    for name, what in _BOARD.items():
        row = scores[name]
        known = row["predicted before opened"]
        count = re.match(r"\d+", known)
        before = f"{count[0]} of them " if count else ""
        blind = "none blind" if known.startswith("no row") else f"{before}predicted before they were opened"
        note = f": {_WORST[name].format(**_some(name))}" if name in _WORST else ""
        yield (
            f"| others: {what.format(row['rows'])}, {blind} ([board](docs/board.md)) | {row['mean']} "
            f"| {_percent(_number(row['worst']))}{note} | {_decided(name)} |"
        )


def _some(name: str) -> dict[str, str]:
    """Mean and worst error of the rows that ``_SOME`` keeps of a table, and its worst error but one."""
    (section,) = re.findall(rf"^## {name}: .*?\n\n(.*?)(?:\n\n|\Z)", _read("board"), re.M | re.S)
    rows = _tables(section, section.split("|")[1].strip())
    counted = [row for row in rows if row["error"][:1] in ("+", "-") and "read off" not in row["error"]]
    errors = [_number(row["error"]) for row in counted if _SOME.get(name, bool)(row)]
    following = sorted(_number(row["error"]) for row in counted)[-2]
    return {"mean": _percent(mean(errors)), "worst": _percent(max(errors)), "next": _percent(following)}


def _own() -> Iterator[str]:
    (loop,) = [row for row in _tables(_read("validation"), "bundle") if "loopback" in row["bundle"]]
    predicted, measured = loop["winner predicted / measured"].split(" / ")
    bundle = json.loads((DOCS / "bundles" / "paceline-loopback.json").read_text(encoding="utf-8"))
    cells = bundle["comparison"]["cells"]
    wall_pct = max(abs(cell["error_pct"]) for cell in cells if cell["metric"] == "wall_clock_s")
    yield (
        "| this machine's loopback: four processes, three repeats of five schemes "
        f"([bundle](docs/validation.md#bundles)) | {_percent(_number(loop['mean error']))} | "
        f"{_percent(_number(loop['worst']))}: when one asynchronous run scored the target; wall clocks "
        f"{_percent(wall_pct)} | {'yes' if predicted == measured else 'no'} |"
    )
    page = _read("measurements")
    tasks = [row for row in _tables(page, "task") if "predicted at" in row]
    sizes = sum(len(row["predicted at"].split(",")) for row in tasks)
    device = re.search(r"NVIDIA \w+", page)
    errors = [_number(row["mean absolute error"]) for row in tasks]
    yield (
        f"| a gradient at batch sizes that were not measured, on an {device[0] if device else ''}; "
        f"{sizes} batch sizes of {len(tasks)} tasks ([each task](docs/measurements.md)) "
        f"| {_percent(mean(errors))} | {_percent(max(_number(row['worst']) for row in tasks))} | - |"
    )


def _number(text: str) -> float:
    """The size of a percentage."""
    return abs(float(text.split()[0]))


def _percent(value: float) -> str:
    return f"{value:.{1 if value < 10 else 0}f} %"


def main() -> None:
    """Renew both pages."""
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))
    write_atomically(ACCURACY, with_all_rows(ACCURACY.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
