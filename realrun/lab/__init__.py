"""The lab: a wide-area network emulated on one Linux machine, for real processes and real TCP.

``Lab`` runs it, ``available`` says whether this machine can, ``paceline.realrun.lab.self_test`` how well.
"""

from .lab import Lab, available
from .protocol import Statistics

__all__ = ["Lab", "Statistics", "available"]
