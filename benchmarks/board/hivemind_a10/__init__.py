"""Eight models averaged by hivemind on two to eight A10 of one site; see README.md."""
