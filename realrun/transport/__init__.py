"""Who moves the bytes of a real run.

Messages from one worker to another go over gloo (``messages``). Operations that workers begin in one order,
mixes and collectives, go over the backend of the run (``collectives``): ``gloo`` or, as NCCL, ``nccl``.
``transport`` puts the two together for one run.
"""
