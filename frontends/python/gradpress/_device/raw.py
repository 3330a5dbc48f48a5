"""none: gradients travel as they are."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from gradpress._device.codec import SUM, TWO_BYTE_SUM, Place, Route, Sent, TensorCodec, Turn
from gradpress._device.spec import Spec


class Raw(TensorCodec):
    """Two-byte gradients are added in float32 and travel in two bytes. Others are added in their own type."""

    elementwise = True
    needs_feedback = False

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        two_byte = place.dtype in (torch.float16, torch.bfloat16)
        self.route = Route(TWO_BYTE_SUM if two_byte else SUM, place.dtype)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        return Sent(x.to(self.route.dtype))

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        mean = result if self.route.kind == TWO_BYTE_SUM else result * turn.scale_in(result.dtype)
        return mean, None
