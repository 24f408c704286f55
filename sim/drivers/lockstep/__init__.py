"""The lockstep driver: synchronous schemes, all workers as one value [n, d], and a clock of vectors.

``stacked`` is the mathematics, ``driver`` adds any number of clocks. In each ``clock``, ``messages`` and
``collectives`` say when an exchange ends on every worker, ``accounts`` where the time went, and ``published``
brings what is published into the order of time. ``exact`` says where all this is what the event driver would
find, and why not.
"""
