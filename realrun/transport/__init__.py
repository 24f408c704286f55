"""Transfers of a real run: messages over gloo, mixes and collectives over the backend of the run.

``messages`` carries messages between two workers. ``collectives`` carries the operations that all workers
begin in one order, over ``gloo`` or, as NCCL, over ``nccl``. ``transport`` combines the two for one run.
"""
