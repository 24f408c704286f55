"""The lab: a wide-area network emulated on one Linux machine, for real processes and real TCP.

``Lab`` starts it, ``available`` says whether this machine can, ``realrun.lab.check`` how well.
"""

from realrun.lab.lab import Lab, available
from realrun.lab.protocol import Statistics

__all__ = ["Lab", "Statistics", "available"]
