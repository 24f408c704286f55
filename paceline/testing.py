"""For tests of your own schemes: ``check_scheme``."""

from paceline.extras.replay.contract import check_scheme

__all__ = ["check_scheme"]
