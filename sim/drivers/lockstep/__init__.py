"""The lockstep driver: synchronous schemes, all workers as one value [n, d], and a clock of vectors.

``stacked`` is the mathematics, ``driver`` adds any number of clocks. In each ``clock``, ``messages`` and
``collectives`` time exchanges on every worker, ``accounts`` keeps the time spent, and ``published`` sorts
publications by time. ``exact`` decides where the result equals the event driver's, and why not.
"""
