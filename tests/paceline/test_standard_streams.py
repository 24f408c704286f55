"""Standard streams whose reader may go."""

from __future__ import annotations

import os
import subprocess
import sys

WRITES = """
import sys
from paceline.commands.console import ignore_broken_pipes

ignore_broken_pipes()
sys.stderr.write("at once")
sys.stdin.read()
"""


def test_what_an_unbuffered_process_says_is_read_at_once() -> None:
    """torchrun's ranks run under ``python -u``: their sentences appear while they work."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", WRITES], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert process.stdin is not None
    with process.stderr, process.stdin:
        os.set_blocking(process.stderr.fileno(), True)
        assert process.stderr.read(7) == b"at once"
        process.stdin.close()
        assert process.wait() == 0
