"""Reports of mtr."""

from __future__ import annotations

import pytest

from paceline.extras.importers.measured.mtr import read
from paceline.extras.importers.readings import ForeignFile, PathReading
from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind

TEXT = """\
Start: 2026-11-27T19:15:11+0000
HOST: here                        Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- gateway (192.0.2.1)        0.0%    10    0.3   0.4   0.3   0.6   0.1
  2.|-- ???                       100.0    10    0.0   0.0   0.0   0.0   0.0
        [MPLS: Lbl 24015 Exp 0 S u TTL 1]
  3.|-- eu.example                10.0%    10   80.1  81.0  80.0  84.0   2.0
"""
JSON = """\
{"report": {"mtr": {"src": "here", "dst": "192.0.2.9", "tos": 0, "tests": 10, "psize": "64"},
 "hubs": [{"count": 1, "host": "gateway", "Loss%": 0.0, "Snt": 10, "Avg": 0.4, "StDev": 0.1},
          {"count": 3, "host": "eu.example", "Loss%": 10.0, "Snt": 10, "Avg": 81.0, "StDev": 2.0}]}}
"""


def _path(text: str) -> PathReading:
    assert foreign_kind(text) == "mtr"
    (path,) = read(ForeignFile("mtr.txt", text)).paths
    return path


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n"), JSON])
def test_half_of_the_mean_round_trip_to_the_last_hop(text: str) -> None:
    path = _path(text)
    assert path.latency_s == pytest.approx(0.0405)
    assert path.jitter_s == pytest.approx(0.002 / 2**0.5)
    assert path.loss == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT[: TEXT.index("  3.")], r"^mtr\.txt:4: the last hop did not answer"),
        (
            JSON.replace('"eu.example", "Loss%": 10.0', '"???", "Loss%": 100.0'),
            r"the last hop did not answer",
        ),
        (TEXT.replace("   2.0\n", "\n"), r"^mtr\.txt:6: has 6 values for 7 columns"),
        (TEXT.replace("10.0%    10", "10.0%   0.5"), r"^mtr\.txt:6: the last hop did not answer"),
        (TEXT.replace("81.0", "91.0"), r"^mtr\.txt:6: is damaged: its mean, 91 ms, is not in 80 to 84 ms"),
        (TEXT[: TEXT.index("  1.")], r"^mtr\.txt: has no hop"),
        (TEXT + TEXT, r"^mtr\.txt:8: has a second report"),
        (TEXT.replace("Avg", "Jttr"), r"has no column Avg; run mtr without -o"),
        ("Mtr_Version,Start_Time\n", "is mtr's XML or CSV; run mtr with -j"),
        (JSON.replace("hubs", "hops"), r"has no hop: there is no list 'hubs'"),
        (JSON[:-9], r"is cut, or no JSON"),
        ('<?xml version="1.0"?>\n<MTR SRC="here" DST="192.0.2.9">', r"is mtr's XML or CSV; run mtr with -j"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _path(text)
