"""Traffic in virtual time: transfers, streams and collectives on the links of a network."""
