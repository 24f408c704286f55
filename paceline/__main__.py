"""``python -m paceline``: the command line."""

from paceline.commands.app import main

if __name__ == "__main__":
    main()
