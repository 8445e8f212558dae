"""BackendContract: what every backend keeps, as a pytest class."""

from gpufabric.testing._contract_live import LiveContract
from gpufabric.testing._contract_once import OnceContract, SecrecyContract
from gpufabric.testing._contract_plan import PlanContract
from gpufabric.testing._contract_run import RunContract

__all__ = ["BackendContract"]


class BackendContract(PlanContract, RunContract, LiveContract, OnceContract, SecrecyContract):
    """What every backend keeps. Subclass it as `TestMine` and override its hooks.

    Needed: `make_factory` and `leftovers`. `task` where two small nodes are not to be had;
    `fail_call`, `count_calls`, `heal` and `injects_faults = True` where the place (or its
    stand-in) can be told to fail.
    """
