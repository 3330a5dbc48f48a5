"""All that differs between PyTorch 1.13 and 2.14, and nothing else."""
from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def default_group() -> Any:
    """The process group of the whole job."""
    return distributed_c10d._get_default_group()


def store_of(process_group: Any) -> Any:
    """The store at which the group's ranks met, under a prefix that is the group's own."""
    world = getattr(distributed_c10d, "_world", None)  # 2.x
    groups = world.pg_map if world is not None else distributed_c10d._pg_map
    names = world.pg_names if world is not None else distributed_c10d._pg_names
    if process_group not in groups:
        raise ValueError("gradpress: this process group was not made by torch.distributed: wanted the result of "
                         "init_process_group or new_group")
    # All groups of a job share one store.
    return dist.PrefixStore(f"gradpress/{names[process_group]}", groups[process_group][1])


def timeout_of(process_group: Any) -> timedelta:
    """How long the group's own collectives wait for a peer."""
    holders = [process_group]
    if hasattr(process_group, "_get_backend"):  # 2.x: a group holds a backend per device
        for kind in ("cpu", "cuda"):
            try:
                holders.insert(0, process_group._get_backend(torch.device(kind)))
            except RuntimeError:
                continue
    for holder in holders:
        options = getattr(holder, "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, timedelta):
            return timeout
    return timedelta(minutes=30)  # torch's default


def after_accumulation(parameter: torch.nn.Parameter, call: Callable[[], None]) -> Any:
    """Calls `call` whenever autograd has added to the parameter's gradient. Keep what this returns."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)  # 2.1
    if register is not None:
        return register(lambda _: call())
    accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: call())
    return accumulator  # its hooks live as long as it does


def when_backward_ends(call: Callable[[], None]) -> bool:
    """Calls `call` at the end of the backward pass that runs now; False if none runs."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(call)
    except RuntimeError:
        return False
    return True


def profiling() -> bool:
    """Whether torch's profiler records this thread."""
    return bool(torch.autograd._profiler_enabled())


def unwrapped(model: Any) -> Any:
    """The module that torch.compile was given, or the model itself."""
    return getattr(model, "_orig_mod", model)


def refusal(model: torch.nn.parallel.DistributedDataParallel) -> Optional[str]:
    """Why gradpress cannot serve this DDP model, or None."""
    if getattr(model, "_use_python_reducer", False):  # 2.3, torch._dynamo.config.optimize_ddp
        return ('torch._dynamo.config.optimize_ddp = "python_reducer": DDP then calls no communication hook with its '
                'buckets; set it to True or "ddp_optimizer" before the model is wrapped')
    if getattr(model, "mixed_precision", None) is not None:  # 2.1
        return ("DistributedDataParallel(mixed_precision=…): DDP then uses its only communication hook itself; use "
                "torch.autocast instead")
    return None


def has_rebuilt_buckets(model: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Whether DDP has put its buckets into the order of backward, which it does once. False where that is not known."""
    return bool(getattr(model, "_has_rebuilt_buckets", False))


def copies_in_batches(model: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Whether DDP fills its buckets by batched copies (2.12), and then divides the whole bucket by the number of ranks."""
    return bool(getattr(model, "batched_grad_copy", False) or getattr(model, "_batched_grad_copy", False))


# -- the device path ---------------------------------------------------------------------------------------------------


def all_gather_flat(output: Any, own: Any, group: Any) -> Any:
    """Starts an all-gather of equal flat tensors into one flat tensor, rank after rank; returns the work."""
    if own.device.type == "cpu" or "gloo" in str(dist.get_backend(group)):  # 1.13's Gloo knows lists alone
        parts = list(output.view(dist.get_world_size(group), -1).unbind(0))
        return dist.all_gather(parts, own, group=group, async_op=True)
    # From 2.13 on the second name warns.
    start = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return start(output, own, group=group, async_op=True)


def adds_float16(group: Any, device: torch.device) -> bool:
    """Whether the group can add float16 (Debian's PyTorch 2.14 has a Gloo that cannot). Every rank asks."""
    if device.type != "cpu" and "gloo" not in str(dist.get_backend(group)):
        return True
    try:
        dist.all_reduce(torch.zeros(1, dtype=torch.float16, device=device), group=group)
    except RuntimeError as error:
        if "scalar type" not in str(error):
            raise
        return False
    return True


def _autocast_by_device() -> bool:
    try:
        torch.is_autocast_enabled("cpu")
    except TypeError:
        return False
    return True


_AUTOCAST_BY_DEVICE = _autocast_by_device()  # 2.4 on


def _autocast_enabled(device_type: str) -> bool:
    if _AUTOCAST_BY_DEVICE:
        try:
            return torch.is_autocast_enabled(device_type)
        except RuntimeError:  # a device without autocast
            return False
    return torch.is_autocast_cpu_enabled() if device_type == "cpu" else torch.is_autocast_enabled()


def without_autocast(device_type: str) -> Any:
    """A context in which matrix products keep float32, also where backward() was called under autocast."""
    return torch.autocast(device_type, enabled=False) if _autocast_enabled(device_type) else contextlib.nullcontext()
