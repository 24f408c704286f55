"""Layer profiles: what the layers of models compute and send that are too large to be trained here."""
