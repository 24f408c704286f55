"""Code of the user's that raises, or returns what it must not: one message that names it, no traceback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.hostile.sandbox import Case
from tests.hostile.scenarios import with_value

MODULES: Final[Mapping[str, str]] = {
    "raises": "def build(seed):\n    raise ValueError('no')\n",
    "raises-long": "def build(seed):\n    raise ValueError('no' * 100000)\n",
    "import-raises": "raise RuntimeError('not today')\n",
    "import-exits": "import sys\nsys.exit(0)\n",
    "import-exits-7": "raise SystemExit(7)\n",
    "import-is-cancelled": "import asyncio\nraise asyncio.CancelledError\n",
    "syntax": "def build(:\n",
    "nul": "x = '\0'\n",
    "other-name": "def bulid(seed):\n    return None\n",
    "no-function": "build = 5\n",
    "returns-none": "def build(seed):\n    return None\n",
    "returns-text": "def build(seed):\n    return 'x'\n",
    "returns-empty": "def build(seed):\n    return ()\n",
    "no-arguments": "def build():\n    return None\n",
    "recursion": "def build(seed):\n    return build(seed)\n",
    "missing-import": "import no_such_module\n",
    "interrupt": "def build(seed):\n    raise SystemExit(0)\n",
}
"""What stands in the module that a scenario names."""
RAISED: Final[Mapping[str, str]] = {
    "repr-raises": "class Odd(Exception):\n    def __repr__(self):\n        raise ValueError\nodd = Odd(5)\n",
    "long": "odd = ValueError('x' * 200_000)\n",
    "long-name": "odd = type('E' * 200_000, (Exception,), {})('no')\n",
    "lines": "odd = ValueError('no' + 10_000 * '\\n' + 'more')\n",
    "terminal": "odd = ValueError('\\x1b[2J\\x07\\u202e no')\n",
    "of-no-exception": "class Odd(BaseException):\n    pass\nodd = Odd('no')\n",
    "cancelled": "import asyncio\nodd = asyncio.CancelledError()\n",
    "generator-exit": "odd = GeneratorExit()\n",
    "memory": "odd = MemoryError()\n",
    "group": "odd = ExceptionGroup('no', [ValueError('x' * 100_000)] * 1000)\n",
}
"""What it raises when it is called: ``odd``."""
COMPUTE: Final = (
    "'0.01'", "True", "float('nan')", "float('inf')", "-1.0", "1e308", "10 ** 5000", "[0.01]", "object()",
    "1j", "build", "b'5'", "0.01 if index < 2 else float('nan')", "0.01 if index < 2 else 'x' * 200_000",
    "type('X' * 200_000, (), {})()",
)  # fmt: skip
"""Seconds that a gradient cannot take."""
NETWORK: Final = (
    "Network(('all',), (0,) * workers, (), ((nan,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (), ((-1.0,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (), (('1 ms',),), ((inf,),))",
    "Network(('all',), (0,) * workers, (), ((1e308,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (), ((0.1,),), ((nan,),))",
    "Network(('all',), (0,) * workers, (), ((0.1,),), ((0.0,),))",
    "Network(('all',), (0,) * workers, (), (), ())",
    "Network(('all',), (7,) * workers, (), ((0.1,),), ((inf,),))",
    "Network(('all',), (-1,) * workers, (), ((0.1,),), ((inf,),))",
    "Network(('all',), None, (), ((0.1,),), ((inf,),))",
    "Network((), (0,) * workers, (), ((0.1,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (5,), ((0.1,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (Link('a', 0.0),), ((0.1,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (Link('a', nan),), ((0.1,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (Link('a', 'x' * 200_000),), ((0.1,),), ((inf,),))",
    "Network(('all',), (0,) * workers, (Link('a', 1e6),), ((0.1,),), ((inf,),), up={0: 5})",
    "Network(('all',), (0,) * workers, (Link('a', 1e6),), ((0.1,),), ((inf,),), down={0: 'a'})",
    "Network(('all',), (0,) * workers, (), ((0.1,),), ((inf,),), routes={(0, 1): Route((), nan, inf)})",
    "Network(('all',), (0,) * workers, (), ((0.1,),), ((inf,),), routes={(0, 1): Route((3,), 0.1, inf)})",
    "Network(('all',), (0,) * workers, (), ((0.1,),), ((inf,),), routes=5)",
    "Network",
    "workers",
)
"""Networks that cannot be."""
TOPOLOGY: Final = (
    "nx.path_graph(workers + 1)", "nx.empty_graph(workers)", "nx.Graph()",
    "nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 3)])",
    "nx.Graph([(0, 1), (2, 3)])", "nx.DiGraph([(0, 1), (1, 2), (2, 3)])", "[[0, 1]]", "nx.Graph",
    "nx.Graph([(0, 'a'), ('b', float('inf'))])",
)  # fmt: skip
"""Graphs that cannot bring four workers together."""
ALL_REDUCE: Final = (
    "Schedule(5, 1)", "Schedule(None, 1)", "Schedule((), 1)", "Schedule(((),) * workers, 0)",
    "Schedule(((),) * workers, 'x')", "Schedule((5,) * workers, 1)", "Schedule(((5,),) * workers, 1)",
    "Schedule(((Round(((9, 5),), ()),),) + ((),) * (workers - 1), 1)",
    "Schedule(((Round(((0, 5),), ()),),) + ((),) * (workers - 1), 1)",
    "Schedule(((Round(((1, -5),), ()),), (Round((), ((0, -5),)),), (), ()), 1)",
    "Schedule(((Round(((1, 0.5),), ()),), (Round((), ((0, 0.5),)),), (), ()), 1)",
    "Schedule(((Round(((1, nan),), ()),), (Round((), ((0, nan),)),), (), ()), 1)",
    "Schedule(((Round(((1,),), ()),), (), (), ()), 1)", "Schedule((None, [], {}, ()), 1)", "Schedule", "{}",
)  # fmt: skip
"""Schedules that cannot be carried out by four workers."""
_MODEL: Final = "torch.nn.Linear(3, 2)"
_LOSS: Final = "torch.nn.functional.cross_entropy"
_DATA: Final = "(torch.randn(64, 3), torch.zeros(64, dtype=torch.long))"
TASKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "loss-vector": (_MODEL, "lambda o, t: o.sum(dim=1)", _DATA),
    "loss-number": (_MODEL, "lambda o, t: 0.5", _DATA),
    "loss-text": (_MODEL, "lambda o, t: 'x' * 200_000", _DATA),
    "loss-complex": (_MODEL, "lambda o, t: o.sum() * 1j", _DATA),
    "loss-detached": (_MODEL, "lambda o, t: o.sum().detach()", _DATA),
    "loss-raises": (_MODEL, "lambda o, t: 1 / 0", _DATA),
    "model-none": ("None", _LOSS, _DATA),
    "model-class": ("torch.nn.Linear", _LOSS, _DATA),
    "model-empty": ("torch.nn.ReLU()", _LOSS, _DATA),
    "model-double": ("torch.nn.Linear(3, 2).double()", _LOSS, _DATA),
    "model-frozen": ("torch.nn.Linear(3, 2).requires_grad_(False)", _LOSS, _DATA),
    "model-other-shape": ("torch.nn.Linear(5, 2)", _LOSS, _DATA),
    "model-tuple": ("torch.nn.LSTM(3, 2)", _LOSS, _DATA),
    "model-not-copied": ("Uncopied()", _LOSS, _DATA),
    "data-none": (_MODEL, _LOSS, "None"),
    "data-one": (_MODEL, _LOSS, "torch.randn(64, 3)"),
    "data-lengths": (_MODEL, _LOSS, "(torch.randn(64, 3), torch.zeros(5))"),
    "data-empty": (_MODEL, _LOSS, "(torch.randn(0, 3), torch.zeros(0))"),
    "data-scalars": (_MODEL, _LOSS, "(torch.tensor(1.0), torch.tensor(1.0))"),
    "data-objects": (_MODEL, _LOSS, "(np.array([None, object()]), np.array(['a', 'b']))"),
    "data-keys": (_MODEL, _LOSS, "{'x' * 200_000: 5}"),
    "data-few": (_MODEL, _LOSS, "(torch.randn(3, 3), torch.zeros(3, dtype=torch.long))"),
    "data-raises": (_MODEL, _LOSS, "Odd()"),
    "data-endless": (_MODEL, _LOSS, "Endless()"),
    "data-stream": (_MODEL, _LOSS, "Stream()"),
    "data-huge": (_MODEL, _LOSS, "(torch.zeros(1, 3).expand(10 ** 12, 3), torch.zeros(1).expand(10 ** 12))"),
}
"""Model, loss and data that cannot be trained."""
FAILING_TASKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "loss-vector-later": (_MODEL, "lambda o, t: o.sum(dim=1) if len(o) > 2 else o.sum()", _DATA),
    "target-beyond": (_MODEL, _LOSS, "(torch.randn(64, 3), torch.arange(64))"),
    "model-raises-later": ("Tires()", _LOSS, _DATA),
}
"""Those of which it shows only while they are trained."""
_TASK: Final = """\
import threading
import numpy as np
import torch

class Odd(torch.utils.data.Dataset):
    def __len__(self):
        return 5
    def __getitem__(self, k):
        raise OSError('x' * 200_000)

class Endless(torch.utils.data.Dataset):
    def __len__(self):
        return 10 ** 15
    def __getitem__(self, k):
        return torch.zeros(3), torch.tensor(0)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield 0.0, 0

class Uncopied(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.lock = threading.Lock()

class Tires(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, x):
        if len(x) > 2:
            raise RuntimeError('x' * 200_000)
        return super().forward(x)

def build():
    return {0}, {1}, {2}
"""
SCHEMES: Final = (
    "await 5", "await worker.publish('x', worker.start)", "await worker.publish(0, None)",
    "await worker.publish(0, torch.zeros(1))", "await worker.publish(0, worker.start.long())",
    "await worker.publish(0, worker.start, note='x')", "await worker.gradient(None)",
    "await worker.gradient(torch.zeros(3))", "await worker.gradient('x' * 200_000)",
    "await worker.all_reduce(5)",
    "await worker.all_reduce(torch.zeros(worker.rank + 1))", "await worker.all_reduce(torch.zeros(0))",
    "await worker.all_reduce(worker.start, groups=5)",
    "await worker.all_reduce(worker.start, groups=((0,), (0,)))",
    "await worker.all_reduce(worker.start, groups=(('a',),))", "await worker.all_gather('x')",
    "await worker.all_gather(torch.zeros(worker.rank + 1))", "await worker.broadcast(worker.start, 'x')",
    "await worker.broadcast(worker.start, 99)", "await worker.reduce_scatter(None)",
    "await worker.all_gather_shards(worker.start, 'x')", "await worker.all_gather_shards(worker.start, -5)",
    "await worker.send(99, worker.start)", "await worker.send('x', worker.start)",
    "await worker.send(1, None)",
    "await worker.send(worker.rank, worker.start)", "await worker.receive(-7, worker.start)",
    "await worker.receive(1, None)", "await worker.sleep(float('nan'))", "await worker.sleep(-1.0)",
    "await worker.sleep(float('inf'))", "await worker.sleep('x')", "await worker.wait(5)",
    "await worker.wait_any()", "await worker.wait_any(5)", "await worker.poll(None)", "await worker.begin(5)",
    "await worker.mix(5, worker.start)", "await worker.barrier(groups=5)",
    "[s async for s in worker.segments(5)]", "await worker.batch_loss()",
    "import asyncio; await asyncio.sleep(1)",
    "raise odd", "await worker.begin(ops.Gradient(worker.start)); return", "return 5",
    "await worker.receive(1 - worker.rank % 2, worker.start)", "worker.draw('x', 0, 0)",
    "while True: await worker.now()",
    "worker.start.fill_(float('nan'))", "await worker.publish(10 ** 30, worker.start)",
    "x = await worker.gradient(worker.start); await worker.publish(0, x * 1e308 * 1e308); 1 / 0",
)  # fmt: skip
"""What the first step of a scheme of the user's may hold, though it cannot be."""
_PLACES: Final = (
    ("workload", "{{task: 'mine:{0}', batch_size: 4, optimizer: {{lr: 0.1}}}}"),
    ("cluster.compute", "{{model: 'mine:{0}'}}"),
    ("cluster.network", "{{model: 'mine:{0}'}}"),
    ("collectives.all_reduce", "'mine:{0}'"),
    ("schemes", "[{{gossip: {{topology: 'mine:{0}'}}}}]"),
    ("schemes", "['mine:{0}']"),
)
_OWN_SCHEME: Final = _PLACES[-1]
_BEFORE: Final = """\
import networkx as nx
from math import inf, nan
from paceline import Link, Network, Round, Route, Schedule
"""


def cases() -> list[Case]:
    """All of them."""
    return [*modules(), *raising(), *returning(), *tasks(), *schemes()]


def _case(name: str, place: tuple[str, str], module: str, *says: str, fails: bool = False) -> Case:
    """A case whose scenario names ``mine:build``; ``fails``: the run does, not the check before it."""
    text, _ = with_value(place[0], place[1].format("build"))
    argv = ("simulate", "s.yaml") if fails else ("simulate", "s.yaml", "--out", "r")
    files: dict[str, str | bytes] = {"s.yaml": text, "mine.py": module}
    return Case(f"code-{name}", argv, says or ("s.yaml", "mine"), files, fails=fails)


def _kind(place: tuple[str, str]) -> str:
    return "topology" if "topology" in place[1] else place[0]


def modules() -> Iterator[Case]:
    """Modules that cannot be imported, or have no such function; one function loads them for every place.

    Each place meets one such module, and every one that can be loaded and whose function cannot be used.
    """
    for turn, (name, module) in enumerate(MODULES.items()):
        loads = "def build(" in module and name != "syntax"
        for place in _PLACES[:-1] if loads else (_PLACES[turn % 5],):
            yield _case(f"{_kind(place)}-{name}", place, module)


def raising() -> Iterator[Case]:
    """Functions that raise what is hard to show; it is shown by one function for every place but a scheme."""
    for turn, (name, module) in enumerate(RAISED.items()):
        place = _PLACES[turn % 5]
        arguments = "" if place[0] == "workload" else "*arguments"
        body = f"def build({arguments}):\n    raise odd\n"
        yield _case(f"{_kind(place)}-raises-odd-{name}", place, module + body, "s.yaml", "mine.py, line ")
    for name, module in RAISED.items():
        body = "async def build(worker):\n    raise odd\n"
        yield _case(f"scheme-raises-{name}", _OWN_SCHEME, module + body, "mine.py, line ", fails=True)


def returning() -> Iterator[Case]:
    """Functions that return what cannot be."""
    for place, arguments, returned in (
        (_PLACES[1], "worker, index, random", COMPUTE),
        (_PLACES[2], "workers", NETWORK),
        (_PLACES[3], "workers, num_bytes", ALL_REDUCE),
        (_PLACES[4], "workers", TOPOLOGY),
    ):
        for number, value in enumerate(returned):
            module = f"{_BEFORE}def build({arguments}):\n    return {value}\n"
            yield _case(f"{place[0]}-returns-{number}-{value[:30]}", place, module, "mine")


def tasks() -> Iterator[Case]:
    """Tasks that cannot be trained."""
    for name, parts in {**TASKS, **FAILING_TASKS}.items():
        module = _TASK
        for number, part in enumerate(parts):
            module = module.replace(f"{{{number}}}", part)
        says = "training examples" if name == "data-few" else "mine"
        yield _case(f"task-{name}", _PLACES[0], module, says, fails=name in FAILING_TASKS)


def schemes() -> Iterator[Case]:
    """Schemes that ask for what cannot be."""
    for number, line in enumerate(SCHEMES):
        lines = "".join(f"        {each}\n" for each in line.split("; "))
        module = (
            "import torch\nfrom paceline import ops\nodd = ValueError('x' * 200_000)\n"
            f"async def build(worker):\n    async for k in worker.steps():\n{lines}"
        )
        says = "worker 0 waits" if "worker.rank % 2" in line else "mine"
        yield _case(f"scheme-{number}-{line[:40]}", _OWN_SCHEME, module, says, fails=True)
