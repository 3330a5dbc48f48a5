"""efsign: a sign per element and their mean magnitude."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from gradpress._device.codec import GATHER, Place, Route, Sent, TensorCodec, Turn
from gradpress._device.spec import Spec, sign_bytes


class EfSign(TensorCodec):
    """Payload: f32 mean magnitude; sign bits, lowest first, 1 = the IEEE sign bit is set."""

    route = Route(GATHER, torch.uint8)

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self._elements = place.shape.elements
        self._bytes = sign_bytes(self._elements)
        self._weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8).to(place.device)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        negative = torch.zeros(8 * self._bytes, dtype=torch.uint8, device=x.device)
        negative[:self._elements].copy_(torch.signbit(x))
        bits = negative.view(-1, 8).mul_(self._weights).sum(1, dtype=torch.uint8)
        payload = torch.cat((x.abs().mean().view(1).view(torch.uint8), bits))
        return Sent(payload, payload)

    def finite(self, result: torch.Tensor) -> torch.Tensor:
        return torch.isfinite(result[:, :4].contiguous().view(torch.float32)).all()

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        mean = torch.zeros_like(x)
        for payload in result.unbind(0):
            mean.add_(self._values(payload))
        mean.mul_(turn.scale)
        return mean, x.sub_(self._values(own)) if feedback else None

    def _values(self, payload: torch.Tensor) -> torch.Tensor:
        level = payload[:4].view(torch.float32)
        negative = payload[4:].unsqueeze(1).bitwise_and(self._weights).ne(0).view(-1)[:self._elements]
        return torch.where(negative, -level, level)
