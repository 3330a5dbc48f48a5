"""fp16 and bf16: gradients travel in two bytes."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from gradpress._device.codec import SUM, TWO_BYTE_SUM, Place, Route, Sent, TensorCodec, Turn
from gradpress._device.spec import Spec


class Cast(TensorCodec):
    """What both share: the residual is what rounding takes off."""

    elementwise = True
    needs_feedback = False

    def _left_over(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32) - x.to(self.route.dtype).to(torch.float32)


class Fp16(Cast):
    """torch's fp16_compress_hook to the bit: cast, divide, add in float16. Added in float32 where the process group cannot
    add float16."""

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.route = Route(SUM if place.adds_float16 else TWO_BYTE_SUM, torch.float16)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        half = x.to(torch.float16)
        return Sent(half.div(workers) if self.route.kind == SUM else half)

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        return result, self._left_over(x) if feedback else None


class Bf16(Cast):
    """Added in float32; the mean is rounded once more, and the owner of a shard keeps what that takes off."""

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.route = Route(TWO_BYTE_SUM, torch.bfloat16)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        return Sent(x.to(torch.bfloat16))

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        return result, self._left_over(x) if feedback else None
