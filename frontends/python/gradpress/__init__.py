"""gradpress: gradient compression for data-parallel training on slow networks.

    model = DistributedDataParallel(model)
    gp = gradpress.attach(model)                    # measure, plan, compress where it pays
    gp = gradpress.attach(model, codec="acpsgd:4")  # or say what you want
    print(gp.summary())

docs/pytorch.md lists what works with what.
"""
from gradpress import _native
from gradpress._errors import PeerLost
from gradpress._hook import attach, hook
from gradpress._optimizer import DistributedOptimizer, broadcast_parameters
from gradpress._schedule import Schedule
from gradpress._state import State

__all__ = ["DistributedOptimizer", "PeerLost", "Schedule", "State", "attach", "broadcast_parameters", "hook"]
__version__ = _native.version()
