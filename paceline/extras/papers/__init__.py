"""Tasks and schemes of one paper each; their names are those of ``paceline list``."""
