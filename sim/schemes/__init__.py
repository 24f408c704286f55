"""Registry of averaging schemes: name -> program, options and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..config.registry import Registry
from ..config.user_code.call import is_import_path
from ..errors import InputError
from .common.names import explain_unknown

if TYPE_CHECKING:
    from .scheme import Scheme

SCHEMES: Final = Registry["Scheme"](
    __name__,
    {
        "all_reduce": ".all_reduce:ALL_REDUCE", "sharded": ".sharded:SHARDED",
        "local_sgd": ".local_sgd:LOCAL_SGD",
        "adaptive_local_sgd": "paceline.extras.papers.adaptive_local_sgd:ADAPTIVE_LOCAL_SGD",
        "post_local_sgd": ".local_sgd:POST_LOCAL_SGD",
        "gossip": ".gossip:GOSSIP", "sgp": ".sgp:SGP", "ad_psgd": ".ad_psgd:AD_PSGD",
        "leader_sgd": "paceline.extras.papers.leader_sgd:LEADER_SGD",
        "easgd": "paceline.extras.papers.parameter_server:EASGD",
        "eamsgd": "paceline.extras.papers.parameter_server:EAMSGD",
        "downpour": "paceline.extras.papers.parameter_server:DOWNPOUR",
        "diloco": ".diloco:DILOCO", "slowmo": "paceline.extras.papers.slowmo:SLOWMO",
        "gradient_tracking": "paceline.extras.papers.gradient_tracking:GRADIENT_TRACKING",
        "choco_sgd": "paceline.extras.papers.gradient_tracking:CHOCO_SGD",
        "halos": "paceline.extras.papers.halos:HALOS", "fedavg": "paceline.extras.papers.fedavg:FEDAVG",
    },
)  # fmt: skip


def find_scheme(name: str) -> Scheme:
    """Look up a built-in scheme, or a user's ``package.module:scheme``; ``InputError`` if there is none."""
    if is_import_path(name):
        from .user_scheme import user_scheme

        return user_scheme(name)
    if name not in SCHEMES:
        raise InputError(explain_unknown(name, SCHEMES))
    return SCHEMES[name]
