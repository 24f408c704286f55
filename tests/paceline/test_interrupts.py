"""Ctrl-C and SIGTERM: an exception, and an end where nobody gets it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.commands.app import interruptible

DEAF = """\
import hashlib, os, sys, threading, time
from paceline.commands import app
app.END_S = 0.1
with app.interruptible(lambda: os._exit(130)):
    threading.Timer(0.3, os.kill, (os.getpid(), int(sys.argv[1]))).start()
    {body}
"""
LONG_CALL_OF_C = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'
NEVER_ENDS = """\
while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            continue
"""


IN_A_FINALIZER = """\
class Last:
        def __del__(self):
            time.sleep(0.6)
    Last()
    time.sleep(60)
"""
UNBEGUN = """\
import os, signal
from paceline.commands.app import interruptible
async def unbegun(): ...
try:
    with interruptible(lambda: None):
        kept = unbegun()
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError
except KeyboardInterrupt:
    del kept
    print("interrupted")
"""


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Those of a program in the foreground: one in the background ignores SIGINT, and so do its children."""
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def twice(number: signal.Signals) -> None:
    with interruptible(pytest.fail):
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_interrupt_once(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt):
        twice(number)
    assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.parametrize("body", [LONG_CALL_OF_C, NEVER_ENDS, IN_A_FINALIZER])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_takes_no_interrupt_is_ended_without_a_word(body: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", DEAF.format(body=body), str(int(number))]
    ended = subprocess.run(command, timeout=30, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_coroutines_that_never_began_are_no_news_after_an_interrupt() -> None:
    ended = subprocess.run([sys.executable, "-c", UNBEGUN], timeout=30, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")


def test_what_an_outer_program_handles_is_left_to_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible(pytest.fail):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
