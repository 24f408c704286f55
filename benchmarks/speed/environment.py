"""The environment of the peers: ``.venv-bench``, which shares torch with this one and has versions pinned.

A peer that cannot be installed is left out, and the page says why.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(".venv-bench")
PEERS: Final[Mapping[str, tuple[str, ...]]] = {
    "gossipy": ("gossipy-dfl==0.0.1",),
    "appfl": ("appfl==1.12.0",),
}
"""Name of a module -> what pip has to install for it."""
INSTALL_LIMIT_S: Final = 600


def prepare_peers() -> tuple[Path, dict[str, str]]:
    """Set the environment up where it is missing.

    Returns:
        Its Python, and why a peer could not be installed, by name of the module.
    """
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shared = FOLDER / "lib" / version / "site-packages" / "shared.pth"
        shared.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    missing: dict[str, str] = {}
    for module, packages in PEERS.items():
        if not _there(python, module):
            reason = _install(python, packages)
            if reason:
                missing[module] = reason
    return python, missing


def _there(python: Path, module: str) -> bool:
    looked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([str(python), "-c", looked], check=False).returncode == 0


def _install(python: Path, packages: tuple[str, ...]) -> str:
    """Install packages; returns pip's last line where that fails."""
    command = [
        str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--quiet",
        *packages,
    ]  # fmt: skip
    sys.stderr.write(f"installing {', '.join(packages)} into {FOLDER}\n")
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not installed after {INSTALL_LIMIT_S} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines[-1] if lines else f"pip ended with {done.returncode}")


def simgrid_missing() -> str:
    """Why SimGrid cannot be used; "" where it can."""
    needed = [name for name in ("smpicc", "smpirun") if shutil.which(name) is None]
    if needed:
        return f"{' and '.join(needed)} are not there: install Debian's libsimgrid-dev and python3-simgrid"
    looked = subprocess.run(["/usr/bin/python3", "-c", "import simgrid"], check=False, capture_output=True)
    return (
        "" if looked.returncode == 0 else "/usr/bin/python3 has no simgrid: install Debian's python3-simgrid"
    )
