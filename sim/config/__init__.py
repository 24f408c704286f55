"""How anything is written down: settings, units, files, and how mistakes in them are reported."""
