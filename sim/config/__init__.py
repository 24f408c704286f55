"""Written input and output: settings, units, files, and errors about mistakes in them."""
