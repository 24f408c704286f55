"""``python -m paceline``: the command line."""

import os
import sys

if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
        del sys.path[0]  # "python -m" has put it there; it supplies what a scenario names, and nothing else
    from paceline.commands.app import main

    main()
