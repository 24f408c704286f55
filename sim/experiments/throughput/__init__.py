"""What training a language model across sites comes to: tokens per second, bandwidths, hours, losses."""
