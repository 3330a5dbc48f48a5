"""All that differs between PyTorch 1.13 and 2.x, and nothing else."""
from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

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


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A Gloo group of exactly the ranks that meet at the store; nobody else need take part."""
    if not hasattr(dist, "ProcessGroupGloo"):
        raise RuntimeError("gradpress: this PyTorch has no Gloo; it needs a build with USE_GLOO")
    backend = dist.ProcessGroupGloo(store, rank, size, timeout)
    if not hasattr(dist.ProcessGroup, "_register_backend"):  # 1.13: a backend is a process group
        return backend
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


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
