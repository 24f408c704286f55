"""Result folders whose scenario and tables are of different runs, though their checksums fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.errors import InputError
from paceline.sim.records.folder import read_results, write_checksums
from tests.hostile import sandbox

TEXT = sandbox.SMALL.replace("ad_psgd", "{local_sgd: {period: 2, label: rare}}")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a result folder."""
    folder = tmp_path_factory.mktemp("good")
    sandbox.write_good(folder, TEXT)
    return {path.name: path.read_bytes() for path in (folder / "r").iterdir()}


@pytest.mark.parametrize(
    ("name", "there", "instead", "says"),
    [
        ("scenario.yaml", "name: small", "name: large", "of 'small', and its scenario is 'large'"),
        ("scenario.yaml", "label: rare", "label: often", "no run of 'local_sgd' as 'rare'"),
        (
            "scenario.yaml",
            "- local_sgd: {period: 2",
            "- gossip: {period: 2",
            "no run of 'local_sgd' as 'rare'",
        ),
        ("scenario.yaml", "seed: 3", "seed: 30", "with seed 3"),
        ("scenario.yaml", "workers: 2", "workers: 3", "impossible steps"),
        ("scenario.yaml", "workers: 2", "workers: 1", "none of the scenario's 1"),
        ("scenario.yaml", "max_iterations: 4", "max_iterations: 2", "more steps than the scenario's 2"),
        ("summary.json", '"first": "', '"first": "nobody', "no run of 'nobody"),
    ],
)
def test_what_belongs_to_another_scenario_is_refused(
    name: str, there: str, instead: str, says: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    for each, content in good.items():
        (tmp_path / each).write_bytes(content)
    text = good[name].decode()
    assert there in text
    assert read_results(tmp_path).verified
    (tmp_path / name).write_text(text.replace(there, instead))
    write_checksums(tmp_path)
    with pytest.raises(InputError, match=says):
        read_results(tmp_path)
