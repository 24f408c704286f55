"""The papers' and tools' names of schemes, and what is answered to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.ready import ready_documents
from paceline.sim.schemes import SCHEMES, find_scheme
from paceline.sim.schemes.common.names import EXAMPLE_FILES, MODEL_PARALLEL, OTHER_NAMES, OtherNames

PAGE = Path(__file__).parents[4] / "docs" / "scenario.md"


def answer(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_scheme(name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("adpsgd", "'adaptive_local_sgd' (adaptive period) or 'ad_psgd' (asynchronous)"),
        ("AD-PSGD", "'ad_psgd'"),
        ("lsgd", "'leader_sgd: {period: 16}' (a leader pulls) or 'local_sgd: {period: 8}' (local steps)"),
        ("FULLSGD", "'all_reduce'"),
        ("qsgd", "'all_reduce: {compression: {qsgd: {bits: 8}}}'"),
        ("PSGD", "'all_reduce'"),
        ("bsp", "'all_reduce'"),
        ("backup_workers", "'all_reduce: {quorum: 6}'"),
        ("ddp", "'all_reduce'"),
        ("fsdp", "'sharded'"),
        ("SHARD_GRAD_OP", "'sharded: {reshard: false}'"),
        ("ZeRO-1", "'sharded: {shard: optimizer}'"),
        ("hsdp", "'sharded: {inside: hosts}'"),
        ("OpenDiLoCo", "'diloco: {period: 500, compression: {fp16: true}}'"),
        ("cpsgd", "'local_sgd: {period: 8}'"),
        ("local sgd", "'local_sgd'"),
        ("Local-SGD", "'local_sgd'"),
        ("localsgd", "'local_sgd: {period: 8}'"),
        ("post-local", "'post_local_sgd: {switch_at: 500, period: 8}'"),
        ("d_psgd", "'gossip: {topology: ring, order: combine_while_adapting}'"),
        ("dsgd", "'gossip: {topology: ring, order: combine_while_adapting}'"),
        ("OSGP", "'sgp: {topology: one_peer_exponential, overlap: 1}'"),
        ("allreduce", "'all_reduce'"),
        ("DiLoCo", "'diloco'"),
        ("streaming_diloco", "'diloco: {period: 100, fragments: 4, delay: 1, alpha: 0.5}'"),
        ("FedAvg", "'fedavg'"),
        ("CHOCO-SGD", "'choco_sgd'"),
        ("Slow-Mo", "'slowmo'"),
        ("DSGT", "'gradient_tracking: {topology: ring}'"),
    ],
)
def test_other_names_are_answered_with_ours(name: str, write: str) -> None:
    assert answer(name) == f"unknown scheme '{name}'; write {write}"


@pytest.mark.parametrize(
    ("name", "file"), [(name, file) for file, names in EXAMPLE_FILES.items() for name in names]
)
def test_examples_are_named_with_their_file(name: str, file: str) -> None:
    assert answer(name) == (
        f"scheme '{name}' is an example, not built in; beside the scenario run "
        f"'paceline new schemes/{file} {file}.py', and write '{file}:{file}'"
    )
    assert f"schemes/{file}" in ready_documents()


@pytest.mark.parametrize("name", [*MODEL_PARALLEL, "tensor_parallel"])
def test_what_shares_layers_among_workers_is_refused_with_the_reason(name: str) -> None:
    assert "every worker computes its own, simulated and on a cluster" in answer(name)
    assert "time only" in answer(name)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    assert answer("gosip") == "unknown scheme 'gosip'; did you mean 'gossip'?"


@pytest.mark.parametrize("row", OTHER_NAMES, ids=lambda row: row.names[0])
def test_what_is_to_be_written_is_a_scheme(row: OtherNames) -> None:
    entry = SchemeEntry.model_validate(yaml_file.parse(row.write, "answer").value)
    assert entry.name in SCHEMES
    page = PAGE.read_text(encoding="utf-8")
    assert f"`{row.write}` |" in page
    assert all(name in page for name in row.names)


def test_no_example_has_the_name_of_a_scheme() -> None:
    assert not set(EXAMPLE_FILES) & set(SCHEMES)
