"""DiLoCo beside torchft's: the comparison needs torchft, its parts do not."""

from __future__ import annotations

import pytest
import torch

from benchmarks import papers, torchft_diloco


def test_without_torchft_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = torchft_diloco.PAGE.read_bytes()
    with pytest.raises(SystemExit) as end:
        torchft_diloco.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "torchft is not installed here: pip install torchft; nothing was changed\n"
    )
    assert torchft_diloco.PAGE.read_bytes() == before


def test_the_manager_averages_what_all_have_brought() -> None:
    meeting = torchft_diloco.Meeting(2)
    managers = [torchft_diloco.AveragingManager(meeting, rank) for rank in range(2)]
    values = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    pending = [manager.allreduce(value) for manager, value in zip(managers, values, strict=True)]
    for each in pending:
        each.wait()
    assert [value.tolist() for value in values] == [[2.0, 4.0]] * 2
    assert managers[0].current_step() == 0
    assert managers[0].should_commit()
    assert [manager.current_step() for manager in managers] == [1, 0]


def test_the_page_has_room_for_both() -> None:
    text = torchft_diloco.PAGE.read_text(encoding="utf-8")
    assert 0 < text.index(torchft_diloco.SECTION) < text.index(papers.MARK)


@pytest.mark.parametrize("inner", torchft_diloco.INNER)
@pytest.mark.parametrize("form", torchft_diloco.FORMS)
def test_parameters_are_torchfts(form: str, inner: str) -> None:
    pytest.importorskip("torchft.local_sgd")
    assert torchft_diloco.difference(inner, torchft_diloco.FORMS[form]) < torchft_diloco.BAR
