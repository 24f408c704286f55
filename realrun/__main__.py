"""One rank of a job: ``torchrun --nproc-per-node N -m paceline.realrun [validate | probe] SCENARIO``.

The door to ``paceline.commands.rank``. The launcher starts its processes here too, with ``--serve``.
"""

import os
import sys
from typing import NoReturn

from paceline.sim.config.user_code.child_process import end_with_parent


def main() -> NoReturn:
    """Run this rank; exit status 0 done, 1 the run failed, 2 the input is wrong."""
    serves = sys.argv[1:] == ["--serve"]
    if serves or "TORCHELASTIC_RUN_ID" in os.environ:
        # Other launchers do so themselves, or are a shell that need not stay.
        end_with_parent(orders=serves)
    if serves:
        from .launch.cells import serve

        serve()
    from paceline.commands import rank

    rank.main()


if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
        del sys.path[0]  # put there by "python -m"; it serves only for modules named in a scenario
    main()
