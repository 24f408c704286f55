"""A rank ends when its parent dies, whatever it is doing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

GONE_S = 2.0

CHILD = """
import os, signal, sys
sys.platform = sys.argv[1]
from paceline.realrun.launch.parent import end_with_parent
end_with_parent(orders=sys.argv[2] == "orders")
print(os.getpid(), flush=True)
if sys.argv[3] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
while sys.argv[3] == "busy":
    sum(range(10**7))  # a long time without the interpreter's lock for others
signal.pause()
"""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE)
child.wait()
"""


def _is_there(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("platform", "orders", "doing"),
    [
        ("linux", "none", "stopped"),
        ("linux", "orders", "busy"),
        ("other", "none", "waiting"),
        ("other", "orders", "waiting"),
    ],
)
def test_a_process_ends_with_its_parent(platform: str, orders: str, doing: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, platform, orders, doing], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until_s = time.monotonic() + 5 * GONE_S  # on a busy machine too
    while _is_there(child):
        assert time.monotonic() < until_s
        time.sleep(0.01)
