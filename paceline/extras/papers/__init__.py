"""Tasks, schemes and graphs of one paper each; their names are those of ``paceline list``."""
