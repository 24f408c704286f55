"""``python -m paceline``: the command line."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    with suppress(FileNotFoundError):  # a working folder that is gone, see ``main``
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
            del sys.path[0]  # put there by "python -m"; it serves only for modules named in a scenario
    from paceline.commands.app import main

    main()
