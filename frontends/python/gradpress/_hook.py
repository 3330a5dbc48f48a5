"""The hook itself. DDP reads its annotations as objects, so this file has no `from __future__ import annotations`."""
from typing import Any, Optional

import torch
import torch.distributed as dist

from gradpress._state import Codec, Rules, State


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for DistributedDataParallel.register_comm_hook(state, gradpress.hook).

    Hands the bucket to C++ and returns; the future completes with the mean over all workers.
    """
    return state._on_bucket(bucket)


def attach(model: torch.nn.parallel.DistributedDataParallel, codec: Optional[Codec] = None, *, rules: Rules = (),
           start: int = 0, **settings: Any) -> State:
    """Compresses the gradients of a DistributedDataParallel model from now on; arguments as State's.

    Every rank calls it, before the first backward. DDP allows one hook per model.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"gradpress: attach wants a DistributedDataParallel model, got {type(model).__name__}; without DDP "
                        "use gradpress.DistributedOptimizer")
    state = State(model, codec, rules=rules, start=start, **settings)
    model.register_comm_hook(state, hook)
    model.register_forward_pre_hook(lambda *_: state._forward_begins())
    return state
