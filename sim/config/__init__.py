"""How anything is written down: settings, units, files, and what is said about mistakes in them."""
