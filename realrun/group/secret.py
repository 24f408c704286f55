"""The secret of a job, which lets its holders take part and steer."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from paceline.sim.errors import InputError

SECRET_VARIABLE: Final = "PACELINE_SECRET"
MIN_SECRET_LETTERS: Final = 16
"""Minimum length of a secret chosen by a user."""

_JOB: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that identify a job among one user's, to keep them apart."""


def job_secret(environment: Mapping[str, str], one_host: bool) -> bytes:
    """Key of this job's control messages, alike on all of its ranks.

    Derived from ``PACELINE_SECRET`` or, with all ranks on one host, from a file private to this user.
    Raises ``InputError`` for several hosts and no secret, a secret too short, or another user's folder.
    """
    written = environment.get(SECRET_VARIABLE, "")
    if written:
        secret = os.fsencode(written).strip()  # hosts may differ in a trailing line end
        if (letters := len(secret)) < MIN_SECRET_LETTERS:
            raise InputError(f"{SECRET_VARIABLE} has {letters} letters; give it {MIN_SECRET_LETTERS} or more")
    elif one_host:
        secret = _read_secret()
    else:
        raise InputError(
            "the ranks are on several hosts, and share no secret, so that anybody on the network could steer "
            f"them; on every host add the line: export {SECRET_VARIABLE}=...  (the same everywhere, for "
            "example what 'openssl rand -hex 32' prints)"
        )
    job = os.fsencode("\0".join(environment.get(name, "") for name in _JOB))
    return hmac.digest(hashlib.sha256(secret).digest(), job, "sha256")


def _read_secret() -> bytes:
    """Read this user's secret on this host; make it when first needed."""
    try:
        folder = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
        file = _make_secret(folder)
        secret = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"the ranks of this host can share no secret: {error.filename or tempfile.gettempdir()}: "
            f"{error.strerror}; set {SECRET_VARIABLE}"
        ) from error
    if len(secret) < MIN_SECRET_LETTERS:  # a full disk, or a crashed host
        raise InputError(f"{file} holds no secret: remove it, or set {SECRET_VARIABLE}")
    return secret


def _make_secret(folder: Path) -> Path:
    """Make the secret's file, if missing, in a folder of this user alone."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_private(folder, stat.S_ISDIR)
    file = folder / "secret"
    if not file.exists():
        draft = folder / f"secret.{secrets.token_hex(8)}"
        with open(draft, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as new:
            new.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(draft, file)  # atomic; the first one wins
        draft.unlink()
    _check_private(file, stat.S_ISREG)
    return file


def _check_private(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Refuse a path that others may have made, or may read."""
    status = path.lstat()
    if not is_kind(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(
            f"{path} is not this user's alone, so that it keeps no secret: remove it, or set "
            f"{SECRET_VARIABLE}"
        )
