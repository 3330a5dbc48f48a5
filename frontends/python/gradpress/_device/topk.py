"""topk: the elements of the largest magnitudes, with their indices."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from gradpress._device.codec import GATHER, Place, Route, Sent, TensorCodec, Turn
from gradpress._device.spec import Spec


class TopK(TensorCodec):
    """Payload: k u32 indices, ascending; k f32 values. torch chooses among equal magnitudes."""

    route = Route(GATHER, torch.uint8)

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self._kept = spec.kept(place.shape.elements)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        # NaN counts as the largest magnitude, so that it is always sent.
        chosen = torch.topk(x.abs(), self._kept, sorted=False)[1].sort()[0]
        values = x.index_select(0, chosen)
        return Sent(torch.cat((chosen.to(torch.int32).view(torch.uint8), values.view(torch.uint8))), chosen)

    def finite(self, result: torch.Tensor) -> torch.Tensor:
        return torch.isfinite(result[:, 4 * self._kept:].contiguous().view(torch.float32)).all()

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        mean = torch.zeros_like(x)
        # Rank by rank: within one rank indices are distinct, so that every rank adds in the same order.
        for payload in result.unbind(0):
            indices = payload[:4 * self._kept].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
            mean.index_add_(0, indices, payload[4 * self._kept:].view(torch.float32))
        mean.mul_(turn.scale)
        return mean, x.index_fill_(0, own, 0.0) if feedback else None
