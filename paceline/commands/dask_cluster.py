"""Executor of a Dask cluster: its address, and the errors of its scheduler and workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from paceline.sim.config.problems import one_line
from paceline.sim.errors import InputError, RunError, shorten


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
    _check_protected(address)
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("--dask needs a library: pip install 'paceline[dask]'") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # errors are told here, in a line
    try:
        client = Client(address, set_as_default=False)
    except Exception as error:  # of many kinds, by the protocol
        raise InputError(f"--dask {shorten(address)}: {one_line(str(error), 200)}") from error
    with client:
        try:
            yield client.get_executor(pure=False)
        except (KilledWorker, CancelledError) as error:
            who = (
                "the scheduler"
                if isinstance(error, CancelledError)
                else "each worker that did one of the runs"
            )
            raise RunError(f"--dask {shorten(address)}: {who} died; the same command continues") from error


def _check_protected(address: str) -> None:
    """Refuse an address beyond this machine without TLS: who listens there could run anything."""
    url, here = urlsplit(address if "://" in address else f"tcp://{address}"), False
    with suppress(ValueError):
        here = url.hostname == "localhost" or ip_address(url.hostname or "").is_loopback
    if not here and url.scheme != "tls":
        raise InputError(
            f"--dask {shorten(address)}: beyond this machine only with TLS, tls://HOST:PORT; Dask's settings "
            "'distributed.comm.tls' name the certificates"
        )
