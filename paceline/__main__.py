"""``python -m paceline``, and ``paceline``: the command line."""

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; an interrupt while it loads gets a line too, and none counts after its end."""
    try:
        from paceline.commands.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("paceline: interrupted\n")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # what is there ends with the process; looking for cycles in it takes half a second


if __name__ == "__main__":
    with suppress(FileNotFoundError):  # a working folder that is gone, see ``main``
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
            del sys.path[0]  # put there by "python -m"; it serves only for modules named in a scenario
    main()
