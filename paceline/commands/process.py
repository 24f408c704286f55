"""The command line as a process of its own, which ends whatever a user's code has left running in it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from paceline.commands import app
from paceline.sim.config.user_code.patience import PATIENCE_S


def main() -> NoReturn:
    """Run the command line, and end this process: never call it in one that is to go on.

    Python waits at its end for threads, and for functions that are registered for it. Those that code named
    by a scenario has left have as long as one call of such code; then the process ends without them.
    """
    try:
        app.main()
    except SystemExit as ended:
        from paceline.sim.config.user_code.code_files import code_files

        names = sorted(file.name for file in code_files().values())
        if names:
            threading.Thread(target=_end_late, args=(ended.code, names), daemon=True).start()
        raise


def _end_late(status: int, names: Sequence[str]) -> None:
    """End the process, unless it has ended by itself when the user's code has had its time."""
    time.sleep(PATIENCE_S)
    text = f"code of {', '.join(names[:3])} has left something running that did not end for {PATIENCE_S} s"
    os.write(2, f"paceline: {text}; ended without it\n".encode(errors="replace"))
    os._exit(status)
