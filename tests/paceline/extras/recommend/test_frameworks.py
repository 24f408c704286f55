"""What to write in frameworks: rows that run in the installed torch, values of scenarios, what is lacking."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from docs.make import schemes as tables
from paceline.extras.recommend.frameworks import ABSENT, FRAMEWORKS, WAYS, Way, how_to_run, ways_to_run
from paceline.sim.experiments.prepare import resolve
from paceline.sim.scenario.schema import Scenario, load, parse
from paceline.sim.schemes import SCHEMES

SITES = """
name: sites
workload: {task: digits-mlp, batch_size: 32, optimizer: OPTIMIZER, layer_profile: resnet-50}
cluster:
  compute: {time: 50 ms}
  network:
    sites: {us: 2, eu: 2}
    within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}
    between: {latency: 40 ms, bandwidth: 1 Gbit/s}
collectives: {all_reduce: ring}
schemes: [SCHEME]
stop: {max_iterations: 4}
"""
OF_TORCH = {
    "all_reduce": {}, "all_reduce: {overlap: true, bucket: 25 MiB}": {"bucket_cap_mb=25"},
    "all_reduce: {compression: {bf16: true}}": {"bf16_compress_hook"},
    "all_reduce: {compression: {fp16: true}}": {"fp16_compress_hook"},
    "all_reduce: {part_reduce: true}": {"ZeroRedundancyOptimizer"},
    "local_sgd: {period: 7}": {"period=7"},
    "local_sgd: {period: 7, warmup: 3}": {"period=7", "warmup_steps=3"},
    "post_local_sgd: {period: 7, switch_at: 3}": {"period=7", "warmup_steps=3"},
    "sharded": {"reshard_after_forward=True"}, "sharded: {reshard: false}": {"reshard_after_forward=False"},
    "sharded: {inside: sites}": {"(2, 2)"}, "sharded: {shard: optimizer}": {"ZeroRedundancyOptimizer"},
}  # fmt: skip
"""Schemes -> what stands in the call of the installed torch."""
RULES = {
    "{lr: 0.1}": "SGD(model.parameters(), lr=0.1)",
    "{lr: 0.1, momentum: 0.9, clip: 1.0}": "SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "{adam: {lr: 0.01}}": "Adam(model.parameters(), lr=0.01)",
    "{adamw: {lr: 0.01, beta2: 0.95}}": "AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))",
}


def rows_of(scheme: str, text: str = SITES, optimizer: str = "{lr: 0.1}") -> list[dict[str, Any]]:
    scenario = scenario_of(scheme, text, optimizer)
    return ways_to_run(scenario, scenario.schemes[0])


def scenario_of(scheme: str, text: str = SITES, optimizer: str = "{lr: 0.1}") -> Scenario:
    return resolve(parse(text.replace("SCHEME", scheme).replace("OPTIMIZER", optimizer)), torch.device("cpu"))


def sentence(scheme: str) -> str:
    scenario = scenario_of(scheme)
    return how_to_run(scenario.schemes[0], ways_to_run(scenario, scenario.schemes[0]))


def in_framework(rows: list[dict[str, Any]], framework: str) -> dict[str, Any]:
    return next(row for row in rows if row["framework"] == framework)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process alone; or as the first of four, whose collectives do nothing."""
    if "inside" in request.node.callspec.params["scheme"]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    else:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("scheme", OF_TORCH)
def test_what_to_write_in_torch_runs(scheme: str) -> None:
    """Names, arguments and order are those of the installed torch, and a step is taken."""
    row = in_framework(rows_of(scheme), "torch")
    assert all(part in row["write"] for part in OF_TORCH[scheme])
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    own: dict[str, Any] = {**vars(torch.optim), "model": torch.nn.Sequential(*layers), "layers": layers}
    exec(row["imports"].replace("; ", "\n"), own)
    if "bf16" in scheme:
        with pytest.raises(TypeError, match="NCCL"):  # as the row says
            exec(row["write"], own)
        return
    exec(row["write"].replace('"cuda"', '"cpu"'), own)
    optimizer = own.get("optimizer") or torch.optim.SGD(own["model"].parameters(), lr=0.1)
    own["model"](torch.ones(1, 4)).sum().backward()
    optimizer.step()


def test_the_table_is_read_in_the_torch_that_is_installed() -> None:
    assert torch.__version__.partition("+")[0] == FRAMEWORKS["torch"]["version"]


@pytest.mark.parametrize("optimizer", RULES)
def test_optimisers_are_written_as_in_torch(optimizer: str) -> None:
    written = rows_of("local_sgd: {period: 4}", optimizer=optimizer)[0]["write"]
    assert RULES[optimizer] in written
    call = eval(RULES[optimizer], {**vars(torch.optim), "model": torch.nn.Linear(1, 1)})
    assert isinstance(call, torch.optim.Optimizer)


def test_every_scheme_has_a_row_or_is_absent() -> None:
    assert {way.scheme for way in WAYS} | ABSENT.keys() == set(SCHEMES)
    assert not {way.scheme for way in WAYS} & ABSENT.keys()
    assert {way.framework for way in WAYS} == FRAMEWORKS.keys()
    assert all(
        way.source and each["address"].startswith("https://") for way in WAYS for each in FRAMEWORKS.values()
    )


EXAMPLES = [
    *OF_TORCH, "all_reduce: {outer: {period: 4}}", "diloco: {period: 8}", "diloco: {period: 8, fragments: 2}",
    "diloco: {period: 8, delay: 2}", "slowmo", "gossip: {topology: ring}", "gossip: {topology: path}",
    "gossip: {topology: one_peer_exponential}", "sgp: {topology: one_peer_exponential}", "ad_psgd",
    "fedavg: {period: 4}",
]  # fmt: skip


@pytest.mark.slow
def test_all_that_is_python_is_valid_python() -> None:
    rows = {
        (scheme.partition(":")[0], row["framework"], row["write"]): row
        for scheme in EXAMPLES
        for row in rows_of(scheme)
    }
    for row in rows.values():
        if row["imports"]:
            ast.parse(row["imports"].replace("; ", "\n") + "\n" + row["write"])
    assert {key[:2] for key in rows} == {(way.scheme, way.framework) for way in WAYS}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.framework} {way.scheme}")
def test_rows_name_options_of_their_scheme(way: Way) -> None:
    options = {*SCHEMES[way.scheme].options.model_fields, "on_fault"}
    assert {*way.parts, *way.fixed} <= options | {f"outer_{key}" for key in ("lr", "momentum", "nesterov")}
    assert {*way.needs} <= {*options, "inner"}


def test_values_are_those_of_the_scenario() -> None:
    rows = rows_of(
        "diloco: {period: 32, fragments: 4, delay: 5, alpha: 0.25, outer: {lr: 0.4}, inside: sites}"
    )
    torchft, maxtext, titan = (in_framework(rows, x) for x in ("torchft", "MaxText", "torchtitan"))
    assert "sync_every=32, fragment_sync_delay=5, fragment_update_alpha=0.25" in torchft["write"]
    assert "SGD(part.parameters(), lr=0.4, momentum=0.9, nesterov=True) for part in parts" in torchft["write"]
    assert torchft["notes"] == [
        "parts: 4 modules that hold the model",
        "one replica group for each of the sites",
    ]
    assert "dcn_diloco_parallelism=2 diloco_sync_period=32 diloco_outer_lr=0.4" in maxtext["write"]
    assert "num_diloco_fragments=4 num_communication_overlapping_steps=5" in maxtext["write"]
    assert titan["lacks"] == ["outer_lr: 0.4"]
    assert "sync_steps=32 --fault_tolerance.num_fragments=4" in titan["write"]
    peers = in_framework(rows_of("local_sgd: {period: 16}"), "hivemind")["write"]
    assert "batch_size_per_step=32, target_batch_size=2048, use_local_updates=True" in peers  # 16 x 4 x 32


@pytest.mark.parametrize(
    ("scheme", "framework", "lacks"),
    [
        ("all_reduce: {compression: {qsgd: {bits: 8}}}", "torch", "compression: {qsgd}"),
        ("all_reduce: {quorum: 3}", "torch", "quorum: 3"),
        ("local_sgd: {period: 4, momentum: mixed}", "torchft", "momentum: mixed"),
        ("local_sgd: {period: {by: time, steps: 4}}", "torchft", "period: {by: time, steps: 4}"),
        ("diloco: {period: 8, delay: 2}", "MaxText", "delay: 2"),
        ("diloco: {period: 8, outer: {nesterov: false}}", "MaxText", "outer_nesterov: False"),
        ("diloco: {period: 8, compression: {qsgd: {bits: 8}}}", "torchft",
         "compression: {qsgd} (nearest: should_quantize=True sends fp8)"),
        ("gossip: {topology: ring, global_period: 4}", "BlueFog", "global_period: 4"),
        ("gossip: {topology: ring, inside: sites}", "BlueFog", "inside: sites"),
        ("sgp: {topology: one_peer_exponential, overlap: 1}", "fairscale", "overlap: 1"),
        ("{local_sgd: {period: 4, on_fault: restart}}", "torchft", "on_fault: restart"),
    ],
)  # fmt: skip
def test_what_a_framework_lacks_is_said(scheme: str, framework: str, lacks: str) -> None:
    row = in_framework(rows_of(scheme), framework)
    assert row["lacks"] == [lacks]
    if framework == rows_of(scheme)[0]["framework"]:
        assert f"{framework} has no {lacks}" in sentence(scheme)


OPTIONS = {
    "outer": "{lr: 0.4}", "fragments": "4", "delay": "5", "alpha": "0.25", "compression": "{bf16: true}",
    "inside": "sites", "overlap": "true, inside: sites", "quorum": "3", "deadline": "1 s",
}  # fmt: skip


@pytest.mark.parametrize("key", OPTIONS)
def test_no_option_is_passed_over(key: str) -> None:
    """What is not at its default changes what is written, a note, or what is lacking."""
    plain, written = (rows_of(f"diloco: {{period: 64{more}}}") for more in ("", f", {key}: {OPTIONS[key]}"))
    for row in written:
        without = in_framework(plain, row["framework"])
        assert any(row[part] != without[part] for part in ("write", "notes", "lacks"))


def test_a_scheme_of_your_own_is_in_no_framework(tmp_path: Path) -> None:
    (tmp_path / "my_answer.py").write_text("async def mine(worker):\n    pass\n")
    (file := tmp_path / "sites.yaml").write_text(
        SITES.replace("SCHEME", '"my_answer:mine"').replace("OPTIMIZER", "{lr: 0.1}")
    )
    (entry,) = (scenario := load(file)).schemes
    said = how_to_run(entry, ways_to_run(scenario, entry))
    assert said == "To run it: my_answer:mine is your own, and no framework is known to have it."


@pytest.mark.parametrize("scheme", ABSENT)
def test_what_no_framework_has_is_said(scheme: str) -> None:
    options = SCHEMES[scheme].options.model_fields
    needed = {"period": "4", "topology": "ring", "compression": "{bf16: true}"}
    given = ", ".join(
        f"{key}: {value}" for key, value in needed.items() if options.get(key) and options[key].is_required()
    )
    said = sentence(f"{scheme}: {{{given}}}")
    assert said.startswith("To run it: none of torch, torchft, ")
    assert said.endswith(f" has {scheme}; nearest: {ABSENT[scheme]}.")


def test_an_optimiser_that_a_framework_does_not_take_leaves_it_out() -> None:
    assert rows_of("ad_psgd")[0]["framework"] == "stochastic_gradient_push"
    assert rows_of("ad_psgd", optimizer="{adamw: {lr: 0.01}}") == []


def test_answers_are_four_lines_long() -> None:
    for scheme in ("all_reduce", "local_sgd: {period: 16}", "diloco: {period: 16, fragments: 4, delay: 3}"):
        assert len(sentence(scheme)) <= 4 * 80


def test_the_page_has_the_table() -> None:
    page = tables.ANSWERS.read_text(encoding="utf-8")
    assert page == tables.with_frameworks(page), "run: python -m docs.make.schemes"
