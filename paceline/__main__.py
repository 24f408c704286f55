"""``python -m paceline``: the command line."""

import os
import sys

if __name__ == "__main__":
    try:
        here = os.getcwd()  # noqa: PTH109  (sys.path holds text)
    except FileNotFoundError:
        sys.stderr.write("paceline: the working folder is gone; change into another one\n")
        sys.exit(2)
    if sys.path[:1] == [here]:
        del sys.path[0]  # put there by "python -m"; it serves only for modules named in a scenario
    from paceline.commands.app import main

    main()
