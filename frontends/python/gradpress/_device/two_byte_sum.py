"""A mean of two-byte values that is computed in float32 and costs the bytes of a two-byte all-reduce.

Every rank owns a shard. Ranks exchange shards, each owner adds its own in the order of ranks, in float32, and rounds the
mean; then the means are gathered. Each rank sends 2·(W − 1)/W · 2n bytes, half of a float32 all-reduce, and all ranks
end with the same bits. Values travel as bytes, because not every Gloo can send bfloat16.
"""
from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from gradpress import _torch_versions


class TwoByteSum:
    """Threads: start() is called by the thread that starts collectives; it waits for the exchange of shards."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._workers = dist.get_world_size(group)
        self._rank = dist.get_rank(group)

    def padded_elements(self, elements: int) -> int:
        return -(-elements // self._workers) * self._workers

    def start(self, values: torch.Tensor, keep_lost: bool) -> TwoByteMean:
        elements = values.numel()
        padding = self.padded_elements(elements) - elements
        if padding:
            values = torch.nn.functional.pad(values, (0, padding))
        shards = torch.empty_like(values)
        dist.all_to_all_single(shards.view(torch.uint8), values.view(torch.uint8), group=self._group,
                               async_op=True).wait()
        ranks = shards.view(self._workers, -1)
        total = ranks[0].to(torch.float32)
        for other in ranks[1:].unbind(0):
            total.add_(other)
        mean = (total / self._workers).to(values.dtype)
        lost = None
        if keep_lost:
            lost = torch.zeros(values.numel(), dtype=torch.float32, device=values.device)
            lost.view(self._workers, -1)[self._rank].copy_(total.sub_(mean.to(torch.float32), alpha=self._workers))
        gathered = torch.empty_like(values)
        work = _torch_versions.all_gather_flat(gathered.view(torch.uint8), mean.view(torch.uint8), self._group)
        return TwoByteMean(gathered[:elements], lost, work, mean)


class TwoByteMean:
    """On its way until `work` is done."""

    def __init__(self, mean: torch.Tensor, lost: Optional[torch.Tensor], work: Any, sent: torch.Tensor) -> None:
        self.mean = mean
        self.lost = lost  # float32: what this rank's rounding took off the sum, zero outside its shard
        self.work = work
        self._sent = sent  # must live until `work` is done
