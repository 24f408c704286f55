"""Layer profiles: computation and messages, by layer, of models too large to be trained here."""
