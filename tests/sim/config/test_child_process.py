"""A rank ends when its parent dies, whatever it is doing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.alive import wait_for_end

CHILD = """
import os, signal, sys
from paceline.sim.config.user_code.child_process import end_with_parent
sys.platform = sys.argv[1]
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
    wait_for_end([child])
