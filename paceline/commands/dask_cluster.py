"""Executor of a Dask cluster: its address, and the errors of its scheduler and workers."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager
from typing import Final

from paceline.sim.config.problems import one_line
from paceline.sim.errors import InputError, RunError, shorten

_ADDRESS: Final = re.compile(
    r"(?:(?:tcp://)?(localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])|tls://[\w.:[\]-]+):([0-9]{1,5})", re.ASCII
)
"""Beyond this machine with TLS alone: who listens there could run anything."""
_ANSWER_S: Final = 8
_TLS: Final = " (Dask's settings 'distributed.comm.tls' name the certificates)"


@contextmanager
def connect(address: str | None) -> Iterator[Executor | None]:
    """Connect to a Dask scheduler for the block, with the security of Dask's own configuration; None: not.

    Raises:
        InputError: ``distributed`` is missing, nothing answers, or an address beyond this machine has no TLS.
        RunError: the scheduler, or worker after worker, died.
    """
    if address is None:
        yield None
        return
    named = f"--dask {shorten(address)}"
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise InputError(
            f"{named}: write tcp://127.0.0.1:8786; beyond this machine only with TLS, tls://HOST:PORT{_TLS}"
        )
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("--dask needs a library: pip install 'paceline[dask]'") from None
    for name in ("distributed", "distributed.client"):  # errors are told here, in a line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if match[1]:  # a scheduler begins with the length of its greeting; Dask would wait for ever
            with socket.create_connection((match[1].strip("[]"), int(match[2])), _ANSWER_S) as connection:
                length = connection.recv(8, socket.MSG_WAITALL)
                if len(length) < 8 or not 0 < int.from_bytes(length, "little") < 1 << 20:
                    raise OSError("what listens there is no scheduler of Dask")
        client = Client(address, timeout=_ANSWER_S, set_as_default=False)
    except Exception as error:  # of many kinds, by the protocol
        raise InputError(f"{named}: {one_line(str(error), 200)}{'' if match[1] else _TLS}") from error
    with client:
        try:
            yield client.get_executor(pure=False)
        except (KilledWorker, CancelledError) as error:
            who = ("each worker that did one of the runs", "the scheduler")[isinstance(error, CancelledError)]
            raise RunError(f"{named}: {who} died; the same command continues") from error
