"""Bytes on their way: transfers, streams and collectives on the links of a network, in virtual time."""
