"""Scenario files that are wrong: values, files as a whole, and files that they name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.hostile.sandbox import Case

GOOD: Final[dict[str, Any]] = {
    "name": "good",
    "seed": "3",
    "workload": {"task": "digits-mlp", "batch_size": "8", "optimizer": {"lr": "0.1"}},
    "cluster": {
        "workers": "4",
        "compute": {"time": "10 ms"},
        "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    },
    "schemes": [{"local_sgd": {"period": "2"}}],
    "stop": {"max_iterations": "4"},
}
"""A scenario, each value as the text that stands in the file."""

BY_HEART: Final = 10**30
"""A number that no computer can carry out."""

_HUGE: Final = (str(BY_HEART), "999999999999")
_NO_NUMBER: Final = (".nan", ".inf", "-.inf", "-1", "many", "'7'", "[1]", "{a: 1}", "true", "1_000")
_NO_QUANTITY: Final = (
    "nan ms", "inf s", "-5 ms", "5", "5 parsecs", "1e400 s", "1e308 h", "[5 ms]", "{a: 5 ms}", "true",
    "ms", "5 hour", "5 seconds", "5 hs", "5 sec", "5 ms 5", "0x10 ms", "\u0665 ms", "~", "1e-400 s",
    "0." + "5" * 5000 + " s",
    '"' + "1" * 5000 + ' s\\ny\\nz"',
)  # fmt: skip
_NO_RATE: Final = ("0 bit/s", "1 Gb/s", "-1 Gbit/s", "1e308 Gbit/s", "1 GB", "1e-300 bit/s", "wide", "100")
_NO_TEXT: Final = ("5", "[a]", "{a: b}", "~", "1.5", "false")

NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "workload.batch_size": (*_HUGE, *_NO_NUMBER, "0", "1000000000", "1.5"),
    "workload.hidden": (*_HUGE, "-1", "0", "1.5", ".nan", "wide"),
    "cluster.workers": (*_HUGE, *_NO_NUMBER, "0", "3.5", "~"),
    "seed": (str(2**63), str(2**63 - 1), *_HUGE[:1], "-1", ".nan", "1.5", "x", "[1]", "~"),
    "repeats": (*_HUGE, "0", "-3", "1.5", "always", "[2]", "true", ".inf", "~"),
    "stop.max_iterations": (*_HUGE, "0", "-1", "1.5", ".inf", ".nan", "ten", "[3]"),
    "workload.optimizer.lr": (".nan", ".inf", "0", "-0.1", "fast", "[0.1]", "1e400"),
    "workload.optimizer.momentum": ("1", "-0.5", ".nan", "1e300", "heavy"),
    "workload.optimizer.weight_decay": ("-1", ".nan", ".inf"),
    "schemes.0.local_sgd.period": (*_HUGE, "0", "-1", "1.5", ".nan", "[2]", "~", "true"),
}
QUANTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster.compute.time": _NO_QUANTITY,
    "cluster.network.latency": ("nan s", "-1 ms", "1 GB", "soon", "1e308 h", "7", "[1 ms]"),
    "cluster.network.bandwidth": _NO_RATE,
    "cluster.network.overhead": ("-1 ms", "1 km", "inf s"),
    "schemes.0.local_sgd.round": _NO_QUANTITY,
    "stop.max_time": ("0 s", "-1 h", "nan h", "1e308 h", "late", "3"),
    "workload.payload": ("0 B", "-1 MB", "1.5 B", "1e308 GB", "1 s", "nan B", "big", "12"),
    "evaluate.every": ("0 steps", "-1 steps", "10", "999999999999 steps", "1.5 steps", "ten steps", "1 h"),
}
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "name": (*_NO_TEXT, "'../../etc/passwd'", "''", "'a b'", "'[/]'", '"a\\0b"', "n" * 5000 + "/"),
    "workload.task": (*_NO_TEXT, "digits-mpl", "'os:system'", "'nowhere.at_all:f'", "''", "'a:b:c'", "':'"),
    "evaluate.on": ("mena", "5", "[mean]", "~"),
    "events": ("some", "first 0 steps", "first 1e9 steps", "first 9999999999999999 steps", "5", "[all]"),
    "gradients": ("fast", "5", "~"),
    "collectives.all_reduce": ("rign", "5", "'os:getcwd'", "''"),
    "cluster.network.sharing": ("all", "3"),
    "cluster.profile": ("missing.yaml", "5", "[a]", "/dev/zero", "."),
    "cluster.compute.model": ("'os:getpid'", "7", "''"),
    "stop.target": ("0.9", "{}", "{metric: test_accuracy}", "{metric: speed, value: 1}",
                    "{metric: test_accuracy, value: 95}", "{metric: test_accuracy, value: .nan}"),
}  # fmt: skip
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "workload": ("~", "[]", "5", "digits-mlp", "{task: digits-mlp, batch_size: 8}"),
    "cluster": ("~", "[4]", "4", "{}"),
    "schemes": ("~", "[]", "local_sgd", "5", "[5]", "[[]]", "[~]", "[gosip]", "[{all_reduce: 5}]", "[{}]",
                "[{gossip: {topology: {ring_lattice: {degree: 1000000000000}}}}]",
                "[{gossip: {topology: {file: missing.json}}}]", "[{gossip: {topology: {file: /dev/zero}}}]",
                "[all_reduce, all_reduce]", "[{all_reduce: ~, gossip: ~}]", "['os:system']",
                "[{local_sgd: {period: 2, label: 5}}]", "[{local_sgd: {period: 2, lable: x}}]"),
    "stop": ("~", "{}", "[]", "{target: {metric: test_accuracy, value: 0.9}}"),
    "cluster.compute": ("{}", "fast", "5 ms", "{time: 1 ms, model: 'a:b'}", "{trace: {}}",
                        "{trace: {durations: []}}", "{trace: {durations: [0 s]}}",
                        "{time: 1 ms, jitter: {lognormal: {cv: 1.0e+308}}}",
                        "{time: 1 ms, jitter: {lognormal: {cv: -1}}}",
                        "{time: 1 ms, jitter: {gamma: {cv: 1.0e-300}}}",
                        "{time: 1 ms, jitter: {gamma: {cv: 1.0e+200}}}",
                        "{time: 1 ms, jitter: {pareto: {shape: 1}}}",
                        "{time: 1 ms, jitter: {pareto: {shape: .inf}}}",
                        "{time: 1 ms, jitter: {shifted_exponential: {cv: 2}}}",
                        "{time: 1 ms, jitter: {normal: {cv: 1}}}",
                        "{time: 1 ms, jitter: {lognormal: {cv: 1}, gamma: {cv: 1}}}",
                        "{measured: {batch_sizes: [1000000000000]}}", "{measured: {batch_sizes: [0, -1]}}"),
    "cluster.stragglers": ("5", "[5]", "[{workers: [4], slowdown: 2}]", "[{workers: [-1], slowdown: 2}]",
                           "[{workers: [0], slowdown: 1.0e+308}]", "[{workers: [0], slowdown: 0.5}]",
                           "[{probability: 2, slowdown: 2}]", "[{probability: .nan, slowdown: 2}]",
                           "[{at: 3 steps, slowdown: 2, duration: 99999999999999 steps}]",
                           "[{workers: [0], pause: 1e300 s}]", "[{workers: [0]}]", "[{slowdown: 2}]"),
    "cluster.network": ("~", "{}", "5", "{sites: {}}", "{sites: {a: 0}, within: {latency: 1 ms}}",
                        "{sites: {a: 4, b: 999999999999999}, within: {latency: 1 ms}}",
                        "{sites: {a: 2, b: 2}, within: {latency: 1 ms}}", "{graph: 5}", "{graph: {}}",
                        "{graph: {hosts: [a, a, b, c]}}", "{graph: missing.graphml}",
                        "{graph: {hosts: [a, b, c, d], links: [{source: a, target: a, latency: 1 ms}]}}",
                        "{latency: 1 ms, announcement: 1.0e+300}", "{latency: 1 ms, announcement: -1}",
                        "{latency: 1 ms, jitter: {lognormal: {cv: 1.0e+308}}}",
                        "{latency: 1 ms, bandwidth: 1 Gbit/s, variation: [{links: '*', markov: "
                        "{slow: 1e-15 s, fast: 1e-15 s, factor: 0.5}}]}",
                        "{latency: 1 ms, bandwidth: 1 Gbit/s, variation: [{links: nobody, markov: "
                        "{slow: 1 s, fast: 1 s, factor: 0.5}}]}"),
    "tune": ("~ ~", "5", "{trials: 3}", "{optimizer.lr: []}", "{optimizer.lr: [.nan]}", "{optimizer.rl: [1]}",
             "{optimizer.lr: [0.1, 0.2], trials: 1000000000000}", "{optimizer.lr: [0.1], trials: 0}",
             "{optimizer.lr: 0.1}", "{optimizer.lr: [0.1, 0.1]}", "{optimizer.lr: [0.1], trials: .inf}"),
    "workload.partition": ("5", "{kind: odd}", "{kind: dirichlet, alpha: 0}",
                           "{alpha: .nan}", "{kind: iid, beta: 1}"),
    "workload.optimizer": ("~", "{}", "5", "{lr: 0.1, adam: {lr: 1}}", "{adam: {lr: 1, beta1: 1}}",
                           "{lr: 0.1, schedule: {warmup: 99999999999999 steps}}",
                           "{lr: 0.1, schedule: {cosine: {until: 0 steps}}}",
                           "{lr: 0.1, schedule: {drops: {at: []}}}", "{lr: 0.1, nesterov: true}"),
    "repeats": ("{most: 1000000000000}", "{half_width: 0 %}", "{half_width: nan %}", "{half_width: 5}"),
    "nmae": ("x",),
    "workload.hiden": ("4",),
    "cluster.wrokers": ("4",),
    "cluster.hosts": ("{a: 3}", "{a: 0}", "{a: 999999999999999999}", "[a]"),
}  # fmt: skip
TASKS: Final = (
    ("quadratic, dimension: 1000000000000, examples: 4", "workload"),
    ("quadratic, dimension: 1000000, examples: 1000000", "GB"),
    ("quadratic, examples: 1000000000000000000000000000000", "workload.examples"),
    ("quadratic, examples: 3", "cluster.workers"),
    ("quadratic, condition: 1.0e+308", "workload.condition"),
    ("quadratic, noise: 1.0e+308", "workload.noise"),
    ("quadratic, condition: .nan", "workload.condition"),
    ("matrix-completion, size: 1000000000", "workload.size"),
    ("random-features, dimension: 1000000, examples: 20000", "s.yaml:"),
    ("matrix-completion, size: 4, rank: 5", "workload.rank"),
    ("matrix-completion, rank: 1000000000000", "workload.rank"),
    ("matrix-completion, known: 0", "workload.known"),
    ("matrix-completion, size: 1", "workload.rank"),
    ("text-transformer, context: 1000000000000", "workload.context"),
    ("text-transformer, width: 1000000000000", "workload.width"),
    ("text-transformer, layers: 1000000000000", "workload.layers"),
    ("text-transformer, layers: 1000, width: 16384, heads: 2", "GB"),
    ("text-transformer, heads: 3", "workload.width"),
    ("text-transformer, file: /dev/zero", "/dev/zero"),
    ("text-transformer, file: missing.txt", "missing.txt"),
    ("text-transformer, file: .", "is a directory"),
    ("text-transformer, file: ~nobody-here/t.txt", "~nobody-here"),
    ("svm, file: ~nobody-here/t.svm", "~nobody-here"),
    ("mnist-cnn, folder: ~nobody-here", "~nobody-here"),
    ("text-transformer, dropout: 1", "workload.dropout"),
    ("mnist-cnn, folder: .", "train-images"),
    ("mnist-cnn, folder: /dev/zero", "/dev/zero"),
    ("cifar-cnn7, folder: nowhere", "nowhere"),
    ("digits-cnn, channels: 1000000000", "workload.channels"),
    ("logistic, l2: 1.0e+308", "workload.l2"),
    ("logistic, l2: -1", "workload.l2"),
)
"""A task with its options, and what the message names."""


def text_of(value: Any, depth: int = 0) -> str:
    """A scenario as it stands in a file: every key on a line of its own, every value as it is written."""
    indent = "  " * depth
    if isinstance(value, dict):
        return "".join(
            f"{indent}{key}:" + (f" {each}\n" if isinstance(each, str) else f"\n{text_of(each, depth + 1)}")
            for key, each in value.items()
        )
    return "".join(f"{indent}- " + text_of(each, depth + 1).lstrip() for each in value)


def with_value(key: str, written: str) -> tuple[str, int]:
    """``GOOD`` with one more value, or another one, and the line where it stands."""
    scenario = json.loads(json.dumps(GOOD))
    *sections, last = key.split(".")
    where = scenario
    for section in sections:
        where = where[int(section)] if isinstance(where, list) else where.setdefault(section, {})
    where[last] = "@here " + written
    lines = text_of(scenario).split("\n")
    line = next(number for number, each in enumerate(lines, 1) if "@here " in each)
    return "\n".join(lines).replace("@here ", ""), line


def in_file(name: str, text: str | bytes, *says: str, **files: str | bytes) -> Case:
    """A scenario file that is wrong; ``files`` stand beside it."""
    beside = {key.replace("__", "."): content for key, content in files.items()}
    return Case(name, ("simulate", "s.yaml", "--out", "r"), says, {"s.yaml": text, **beside})


def values() -> Iterator[Case]:
    """One value of a scenario is wrong: the message names file, line and key."""
    for table in (NUMBERS, QUANTITIES, NAMES, SECTIONS):
        for key, written in table.items():
            for number, each in enumerate(written):
                text, _ = with_value(key, each)
                place = key.split(".")[0] if table is not SECTIONS else ""
                yield in_file(f"{key}-{number}-{each[:20]}", text, "s.yaml:", place)
    for option, word in TASKS:
        workload = f"workload: {{task: {option}, batch_size: 4, optimizer: {{lr: 0.1}}}}\n"
        rest = text_of({key: value for key, value in GOOD.items() if key != "workload"})
        yield in_file(f"task-{option[:40]}", workload + rest, word)


def lines() -> Iterator[Case]:
    """The line of a wrong value is named."""
    for key, written in (
        ("workload.batch_size", "-1"), ("cluster.network.latency", "5"), ("stop.max_iterations", "0"),
        ("schemes.0.local_sgd.period", "x"), ("cluster.compute.time", "5 parsecs"),
    ):  # fmt: skip
        text, line = with_value(key, written)
        yield in_file(f"line-of-{key}", text, f"s.yaml:{line}: {key}")


_TEXT: Final = text_of(GOOD)
_BOMB: Final = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghij")
)
_WIDE: Final = "a: &a {x: 1}\nb: [" + "*a, " * 200_000 + "*a]\n"
WHOLE: Final[Mapping[str, tuple[str | bytes, str]]] = {
    "empty": ("", "s.yaml"),
    "blank": ("\n\n   \n", "s.yaml"),
    "comment": ("# nothing\n", "s.yaml"),
    "null": ("~\n", "s.yaml"),
    "number": ("5\n", "s.yaml"),
    "text": ("hello\n", "s.yaml"),
    "list": ("- a\n- b\n", "s.yaml"),
    "two-documents": (_TEXT + "---\n" + _TEXT, "s.yaml:"),
    "tabs": (_TEXT.replace("  ", "\t"), "s.yaml:"),
    "duplicate-key": (_TEXT + "seed: 4\n", "s.yaml:"),
    "duplicate-inner-key": (_TEXT.replace("  batch_size: 8", "  batch_size: 8\n  batch_size: 9"), "s.yaml:"),
    "python-object": ("name: !!python/object/apply:os.system ['touch hacked']\n" + _TEXT, "s.yaml:1"),
    "python-name": (_TEXT.replace("seed: 3", "seed: !!python/name:os.system"), "s.yaml:"),
    "own-tag": (_TEXT.replace("seed: 3", "seed: !own 3"), "s.yaml:"),
    "binary-tag": (_TEXT.replace("seed: 3", "seed: !!binary aGk="), "s.yaml:"),
    "text-tag": (_TEXT.replace("time: 10 ms", "time: !!str 10 ms"), "s.yaml:"),
    "bare-tag": (_TEXT.replace("time: 10 ms", "time: ! 10 ms"), "s.yaml:"),
    "int-tag": (_TEXT.replace("seed: 3", "seed: !!int 3x"), "s.yaml:"),
    "merge-key": (_TEXT.replace("seed: 3", "<<: {seed: 3}"), "s.yaml:"),
    "alias-bomb": (_BOMB + _TEXT, "s.yaml:"),
    "wide-alias": (_WIDE + _TEXT, "s.yaml"),
    "self-alias": ("a: &a [*a]\n" + _TEXT, "s.yaml"),
    "self-alias-map": ("a: &a {b: *a}\n" + _TEXT, "s.yaml"),
    "no-such-alias": ("a: *b\n" + _TEXT, "s.yaml:1"),
    "deep-list": ("a: " + "[" * 5000 + "]" * 5000 + "\n", "s.yaml"),
    "deep-map": ("a: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n", "s.yaml"),
    "deep-block": ("".join(" " * i + f"k{i}:\n" for i in range(900)), "s.yaml"),
    "deep-open": ("[" * 100_000, "s.yaml"),
    "unclosed": ("a: {b: [c\n", "s.yaml:"),
    "unclosed-quote": ("name: 'x\n", "s.yaml:"),
    "long-number": (_TEXT.replace("seed: 3", "seed: " + "9" * 5000), "seed"),
    "very-long-number": (_TEXT.replace("seed: 3", "seed: " + "9" * 900_000), "seed"),
    "long-hex": (_TEXT.replace("seed: 3", "seed: 0x" + "f" * 900), "seed"),
    "long-float": (_TEXT.replace("seed: 3", "seed: 1." + "0" * 900 + "1"), "seed"),
    "long-key": (_TEXT + "k" * 100_000 + ": 1\n", "s.yaml:"),
    "many-keys": (_TEXT + "".join(f"k{i}: 1\n" for i in range(20_000)), "s.yaml:"),
    "many-schemes": (_TEXT + "x: [" + "all_reduce, " * 50_000 + "]\n", "s.yaml:"),
    "list-key": ("[a, b]: 1\n" + _TEXT, "s.yaml:1"),
    "null-key": ("~: 1\n" + _TEXT, "s.yaml:1"),
    "number-key": ("5: 1\n" + _TEXT, "s.yaml:1"),
    "empty-key": ("'': 1\n" + _TEXT, "s.yaml:1"),
    "control": (_TEXT + "a: \x07\n", "s.yaml:"),
    "escape": (_TEXT + 'a: "\\x1b[2J"\n', "s.yaml:"),
    "null-byte": (_TEXT.encode() + b"a: \0\n", "s.yaml:"),
    "latin-1": (b"name: caf\xe9\n" + _TEXT.encode(), "s.yaml:1"),
    "utf-16": (_TEXT.encode("utf-16"), "s.yaml"),
    "binary": (bytes(range(256)) * 40, "s.yaml"),
    "elf": (b"\x7fELF\x02\x01\x01" + b"\0" * 500, "s.yaml"),
    "zip": (b"PK\x03\x04" + b"\x80" * 500, "s.yaml"),
    "surrogate": (b"name: \xed\xa0\x80\n", "s.yaml:1"),
    "right-to-left": (_TEXT.replace("name: good", "name: g‮ood"), "name"),
    "big": (b"# " + b"x" * (3 * 2**20), "MiB"),
    "json-nan": ('{"name": NaN}', "s.yaml"),
    "windows": (_TEXT.replace("\n", "\r\n") + "sed: 1\r\n", "s.yaml:"),
    "bom": ("\ufeff" + _TEXT + "sed: 1\n", "s.yaml:"),
    "html": ("<!DOCTYPE html><html><body>404</body></html>", "s.yaml"),
    "percent": ("%YAML 9.9\n---\n" + _TEXT, "s.yaml"),
    "directive": ("%TAG ! tag:evil,2000:\n---\nname: !x y\n", "s.yaml"),
    "at-sign": ("@name: x\n", "s.yaml:1"),
    "seconds-as-base-60": (_TEXT.replace("10 ms", "1:30"), "cluster.compute.time"),
}  # fmt: skip
"""What stands in the whole file, and what the message names."""
LONG: Final = "x" * 300
PATHS: Final[Mapping[str, str]] = {
    "missing": "nothing.yaml",
    "zero": "/dev/zero",
    "random": "/dev/urandom",
    "null": "/dev/null",
    "tty": "/dev/stdin",
    "folder": ".",
    "long": LONG + ".yaml",
    "long-folders": "/".join([LONG[:200]] * 30),
    "nul": "a\udc80b.yaml",
    "empty": "",
    "below-a-file": "s.yaml/x.yaml",
    "memory": "/proc/self/mem",
    "proc": "/proc/self/status",
    "loop": "loop.yaml",
    "dash": "--",
}
"""Paths where a scenario file should be."""


def whole() -> Iterator[Case]:
    """The file as a whole is wrong."""
    for name, (content, word) in WHOLE.items():
        yield in_file(f"file-{name}", content, word)
    for number, (name, path) in enumerate(PATHS.items()):
        says = (path[-40:],) if name not in ("empty", "dash", "nul") else ()
        files: dict[str, str | bytes] = {"s.yaml": _TEXT, "loop.yaml": "->loop.yaml"}
        command = ("check", "simulate")[number % 2]  # both load it by the same function
        yield Case(f"path-{command}-{name}", (command, path), says, files)


NETWORK: Final = "{{graph: {}}}"
JSON: Final[Mapping[str, str | bytes]] = {
    "empty": "",
    "list": "[]",
    "number": "5",
    "nothing": "{}",
    "truncated": '{"workers": 4, "edges": [[0, 1], [1',
    "nan": '{"workers": 4, "edges": [[0, NaN]]}',
    "infinite": '{"workers": Infinity, "edges": [[0, 1]]}',
    "negative": '{"workers": 4, "edges": [[0, -1]]}',
    "huge": '{"workers": 4, "edges": [[0, 1e308]]}',
    "huge-workers": f'{{"workers": {BY_HEART}, "edges": [[0, 1]]}}',
    "many-digits": '{"workers": ' + "9" * 10_000 + ', "edges": [[0, 1]]}',
    "deep": "[" * 100_000 + "]" * 100_000,
    "three": '{"workers": 4, "edges": [[0, 1, 2]]}',
    "text": '{"workers": "4", "edges": "0-1"}',
    "beyond": '{"workers": 4, "edges": [[0, 4]]}',
    "itself": '{"workers": 4, "edges": [[0, 0]]}',
    "twice": '{"workers": 4, "edges": [[0, 1], [1, 0]]}',
    "weights": '{"workers": 4, "edges": [[0, 1]], "weights": [0.1, 0.2]}',
    "nan-weights": '{"workers": 4, "edges": [[0, 1]], "weights": [NaN]}',
    "binary": bytes(range(256)),
    "latin-1": b'{"workers": 4, "name": "\xe9"}',
    "unknown": '{"workers": 4, "edges": [[0, 1]], "egdes": []}',
    "others": '{"workers": 5, "edges": [[0, 1], [1, 2], [2, 3], [3, 4]]}',
}
"""What stands in a file where a graph in JSON should be."""
GRAPHML: Final[Mapping[str, str | bytes]] = {
    "empty": "",
    "text": "hello",
    "other-xml": "<a><b/></a>",
    "truncated": "<graphml><graph><node id='a'/>",
    "bomb": "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
        f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in itertools.pairwise("abcdefghij")
    ) + "]><graphml>&j;</graphml>",
    "external": "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><graphml>"
    "<graph edgedefault='directed'><node id='&e;'/></graph></graphml>",
    "no-latency": "<graphml xmlns='http://graphml.graphdrawing.org/xmlns'><graph edgedefault='undirected'>"
    "<node id='a'/><node id='b'/><edge source='a' target='b'/></graph></graphml>",
    "deep": "<a>" * 50_000,
    "binary": bytes(range(256)),
    "no-nodes": "<graphml xmlns='http://graphml.graphdrawing.org/xmlns'><graph edgedefault='undirected'>"
    "</graph></graphml>",
}  # fmt: skip
NODE_LINK: Final[Mapping[str, str]] = {
    "latency": '{"nodes": [{"id": "a"}, {"id": "b"}], '
    '"edges": [{"source": "a", "target": "b", "latency": 5}]}',
    "kind": '{"nodes": [{"id": "a", "kind": "router"}], "edges": []}',
    "unit": '{"nodes": [{"id": "a"}, {"id": "b"}], '
    '"edges": [{"source": "a", "target": "b", "latency": "5 km"}]}',
    "negative": '{"nodes": [{"id": "a"}, {"id": "b"}], '
    '"edges": [{"source": "a", "target": "b", "latency": "-5 ms"}]}',
    "zero": '{"nodes": [{"id": "a"}, {"id": "b"}], '
    '"edges": [{"source": "a", "target": "b", "latency": "5 ms", "bandwidth": "0 bit/s"}]}',
    "nodes-are-numbers": '{"nodes": 5, "edges": 7}',
    "null-ends": '{"nodes": [{"id": "a"}], "edges": [{"source": null, "target": null}]}',
}  # fmt: skip
EDGES: Final[Mapping[str, str | bytes]] = {
    "empty": "",
    "words": "a b\n",
    "one": "0\n",
    "negative": "0 -1\n",
    "huge": f"0 {BY_HEART}\n",
    "many-digits": "0 " + "9" * 10_000 + "\n",
    "far": "0 9999999\n",
    "float": "0 1.5\n",
    "binary": b"\xff\xfe0 1",
    "others": "0 1\n1 2\n",
    "loops": "0 0\n1 1\n",
}
CSV: Final[Mapping[str, str | bytes]] = {
    "empty": "",
    "header": "time [ms]\n",
    "words": "time [ms]\nfast\n",
    "negative": "time [ms]\n-5\n",
    "zero": "time [ms]\n0\n",
    "nan": "time [ms]\nnan\n",
    "infinite": "time [ms]\ninf\n",
    "huge": "time [h]\n1e308\n",
    "no-unit": "time\n5\n",
    "other-unit": "time [GB]\n5\n",
    "columns": "a [ms],b [ms]\n5,6\n",
    "ragged": "time [ms]\n5,6,7\n",
    "quote": 'time [ms]\n"5\n',
    "binary": bytes(range(256)) * 4,
    "latin-1": b"time [\xb5s]\n5\n",
    "long-cell": "time [ms]\n" + "5" * 200_000 + "\n",
    "nul": "time [ms]\n\0\n",
    "same-names": "a [ms],a [ms]\n5,6\n",
    "blanks": "a" + " " * 120_000 + "b\nfast\n",
}
PROFILER: Final[Mapping[str, str]] = {
    "empty": "",
    "number": "5",
    "nothing": "{}",
    "no-events": '{"traceEvents": []}',
    "events-are-text": '{"traceEvents": "x"}',
    "nan": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "dur": NaN}]}',
    "infinite": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "dur": Infinity}]}',
    "huge": f'{{"traceEvents": [{{"ph": "X", "name": "ProfilerStep#1", "dur": {"9" * 400}}}]}}',
    "negative": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "dur": -5}]}',
    "true": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "dur": true}]}',
    "deep": "[" * 100_000,
    "other": '{"traceEvents": [{"ph": "X", "name": "Step", "dur": 5}]}',
}
BANDWIDTHS: Final[Mapping[str, str]] = {
    "not-from-zero": "time,bandwidth\n1 s,1 Gbit/s\n",
    "falling": "time,bandwidth\n0 s,1 Gbit/s\n2 s,1 Gbit/s\n1 s,1 Gbit/s\n",
    "zero": "time,bandwidth\n0 s,0 bit/s\n",
    "no-column": "time,width\n0 s,1 Gbit/s\n",
    "nan": "time,bandwidth\n0 s,nan Gbit/s\n",
}
MATRIX: Final[Mapping[str, str]] = {
    "no-unit": "site,a,b\na,0,5\nb,5,0\n",
    "negative": "site [ms],a,b\na,0,-5\nb,-5,0\n",
}
DEVICES: Final = ("/dev/zero", "/dev/urandom", ".", "missing", LONG)


def _beside(
    kind: str, key: str, written: str, file: str, contents: Mapping[str, str | bytes]
) -> Iterator[Case]:
    """Cases in which ``key`` of the scenario names ``file``, with each of ``contents`` in it."""
    text, _ = with_value(key, written.format(file))
    for name, content in contents.items():
        yield Case(
            f"{kind}-{name}", ("simulate", "s.yaml", "--out", "r"), ("s.yaml", file),
            {"s.yaml": text, file: content},
        )  # fmt: skip


def beside() -> Iterator[Case]:
    """A file that the scenario names is wrong: the message names it."""
    topology = "[{{gossip: {{topology: {{file: {}}}}}}}]"
    yield from _beside("topology-json", "schemes", topology, "g.json", JSON)
    yield from _beside("topology-graphml", "schemes", topology, "g.graphml", GRAPHML)
    yield from _beside("topology-edges", "schemes", topology, "g.edgelist", EDGES)
    yield from _beside("network-graphml", "cluster.network", NETWORK, "g.graphml", GRAPHML)
    yield from _beside("network-json", "cluster.network", NETWORK, "g.json", {**JSON, **NODE_LINK})
    trace = "{{trace: {{file: {}}}}}"
    yield from _beside("trace-csv", "cluster.compute", trace, "t.csv", CSV)
    yield from _beside("trace-profiler", "cluster.compute", trace, "t.json", PROFILER)
    attached = "{{trace: {{attached: {}}}}}"
    yield from _beside("attached", "cluster.compute", attached, "a.json", PROFILER)
    width = "{{latency: 1 ms, bandwidth: 1 Gbit/s, variation: [{{links: '*', trace: {{file: {}}}}}]}}"
    yield from _beside("bandwidths", "cluster.network", width, "b.csv", BANDWIDTHS)
    sites = "{{sites: {{a: 2, b: 2}}, within: {{latency: 1 ms}}, between: {{latency: {}}}}}"
    yield from _beside("latencies", "cluster.network", sites, "l.csv", MATRIX)
    yield from _beside("profile", "cluster.profile", "{}", "p.yaml", {
        "empty": "", "text": "hello", "version": "version: 99\n", "no-version": "factors: {}\n",
        "only-version": "version: 2\n", "list-version": "version: [2]\n", "bomb": _BOMB + "version: 2\n",
        "deep": "version: " + "[" * 5000, "binary": bytes(range(256)),
    })  # fmt: skip
    for kind, key, written in (
        ("topology", "schemes", topology), ("network", "cluster.network", NETWORK),
        ("trace", "cluster.compute", trace), ("attached", "cluster.compute", attached),
        ("bandwidths", "cluster.network", width), ("profile", "cluster.profile", "{}"),
    ):  # fmt: skip
        for device in DEVICES:
            text, _ = with_value(key, written.format(device))
            yield in_file(f"{kind}-names-{device[:12]}", text, "s.yaml:", device[:40])
        fifo, _ = with_value(key, written.format("link.json"))
        yield in_file(f"{kind}-links-to-zero", fifo, "s.yaml:", "link.json", link__json="->/dev/zero")


def cases() -> list[Case]:
    """All of them."""
    return [*values(), *lines(), *whole(), *beside()]
