"""randomk: one element out of each of k strata; every rank draws the same ones, so that they can be summed."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from gradpress._device import random_words
from gradpress._device.codec import SUM, Place, Route, Sent, TensorCodec, Turn
from gradpress._device.spec import Spec


class RandomK(TensorCodec):
    """Payload: k f32 values. Indices are drawn on the device and do not travel."""

    route = Route(SUM, torch.float32)

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self._strata = random_words.Strata(place.shape.elements, spec.kept(place.shape.elements), place.device)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        drawn = self._strata.draw(random_words.key(self.place.seed, self.place.number, step))
        # Adds 0, or NaN if there is a NaN or infinity anywhere in x: one that was not drawn must not pass unnoticed.
        return Sent(x.index_select(0, drawn).add_(x.sum() * 0.0), drawn)

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        mean = torch.zeros_like(x).index_copy_(0, own, result).mul_(turn.scale)
        return mean, x.index_fill_(0, own, 0.0) if feedback else None
