"""All that differs between PyTorch 1.13 and 2.x, and nothing else."""
from __future__ import annotations

from datetime import timedelta
from typing import Any

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
    import torch
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group
