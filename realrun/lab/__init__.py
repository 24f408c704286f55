"""The lab: a wide-area network emulated on one Linux machine, for real processes and real TCP.

``Lab`` runs it, ``paceline.realrun.lab.check`` how well.
"""

from .lab import Lab
from .protocol import Statistics

__all__ = ["Lab", "Statistics"]
