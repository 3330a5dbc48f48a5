"""The hook itself. DDP reads its annotations as objects, so this file has no `from __future__ import annotations`."""
from typing import Optional, Sequence

import torch
import torch.distributed as dist

from gradpress import _torch_versions
from gradpress._settings import Codec, Rules
from gradpress._state import State


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for DistributedDataParallel.register_comm_hook(state, gradpress.hook).

    Hands the bucket over and returns; the future completes with the mean over all workers.
    """
    return state._on_bucket(bucket)


def attach(model: torch.nn.Module, codec: Codec = "auto", *, rules: Rules = (), start: int = 0,
           bucket_bytes: int = 25_000_000, least_elements: int = 1024, feedback: Optional[bool] = None, fusion: bool = True,
           pipelining: bool = True, sum_payloads: bool = True, strict: bool = False, seed: int = 0,
           momentum: Optional[float] = None, nesterov: bool = False, momentum_masking: bool = True, clip_norm: float = 0.0,
           optimizer: Optional[torch.optim.Optimizer] = None, auto_codecs: Optional[Sequence[str]] = None,
           auto_raw_steps: Optional[int] = None, auto_window: Optional[int] = None, auto_cache: Optional[str] = None,
           timeout_s: Optional[float] = None, start_timeout_s: float = 120.0, address: Optional[str] = None,
           local_size: Optional[int] = None) -> State:
    """Compresses the gradients of a DistributedDataParallel model from now on.

    Every rank calls it with the same arguments, before the first backward. DDP allows one hook per model.

    model: a DistributedDataParallel, compiled by torch.compile or not.
    codec: "auto" (measure, plan, compress where it pays), "none" (DDP's own all-reduce), "acpsgd:4", …; a schedule
        {0: "none", 500: "acpsgd:4"} by step; a function of the step; Schedule(…, by="epoch") with `set_epoch`.
    rules: (pattern, codec) pairs; the first whose pattern fits a parameter's name goes before `codec`.
        * stands for any text, ? for one character.
    start: so many steps run as DDP without a hook.
    bucket_bytes: a message of several tensors closes when it has this many bytes of gradients.
    least_elements: parameters with fewer elements travel uncompressed.
    feedback: error feedback on or off; None: where the codec needs it.
    fusion: several tensors share a message.
    pipelining: messages travel while backward runs.
    sum_payloads: payloads that can be added up are summed by all-reduce.
    strict: bytes sent that differ from what the plan says by over 1 % are an error.
    seed: of random codecs and first factors.
    momentum: momentum correction as in DGC and RedSync, with this factor; it replaces the optimizer's momentum.
    nesterov: of the momentum correction.
    momentum_masking: what was sent loses its momentum (DGC's factor masking).
    clip_norm: the gradient's norm above which it is clipped before it accumulates; 0: never.
    optimizer: needed with `momentum`, to check that its own momentum is off.
    auto_codecs: what "auto" may choose from; None: the engine's default.
    auto_raw_steps: uncompressed steps that "auto" times first; None: the engine's default.
    auto_window: steps over which "auto" compares; None: the engine's default.
    auto_cache: folder in which measured links and codecs are kept for later runs; None: nothing is kept.
    timeout_s: how long a rank that is alive may deliver nothing before it counts as lost; None: the process group's own
        timeout. A process that died is found at once.
    start_timeout_s: how long to wait for all ranks to attach.
    address: rank 0's address for the other ranks; None: that of GLOO_SOCKET_IFNAME or of the route to MASTER_ADDR.
    local_size: ranks per machine; None: found out.
    """
    ddp = _torch_versions.unwrapped(model)
    if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"gradpress: attach wants a DistributedDataParallel model, got {type(model).__name__}; without DDP "
                        "use gradpress.DistributedOptimizer")
    reason = _torch_versions.refusal(ddp)
    if reason is not None:
        raise ValueError(f"gradpress: attach does not work with {reason}")
    state = State(ddp, codec, rules=rules, start=start, bucket_bytes=bucket_bytes, least_elements=least_elements,
                  feedback=feedback, fusion=fusion, pipelining=pipelining, sum_payloads=sum_payloads, strict=strict, seed=seed,
                  momentum=momentum, nesterov=nesterov, momentum_masking=momentum_masking, clip_norm=clip_norm,
                  optimizer=optimizer, auto_codecs=auto_codecs, auto_raw_steps=auto_raw_steps, auto_window=auto_window,
                  auto_cache=auto_cache, timeout_s=timeout_s, start_timeout_s=start_timeout_s, address=address,
                  local_size=local_size)
    ddp.register_comm_hook(state, hook)
    return state
