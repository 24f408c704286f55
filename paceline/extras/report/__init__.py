"""``paceline report``: the command and bundles; pages themselves are made in ``reports``."""
