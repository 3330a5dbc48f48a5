"""powersgd: one step of power iteration per training step, started from the last step's Q."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from gradpress._device.codec import Place, Sent, Turn
from gradpress._device.low_rank import LowRank, orthonormal
from gradpress._device.spec import Spec


class PowerSgd(LowRank):
    """P = X·Q is summed first; with P̂, the basis of the sum, Q = Xᵀ·P̂ is summed then. The value is P̂·mean(Q)ᵀ."""

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self._right = self.first_right().to(place.device)

    def first_round(self, x: torch.Tensor) -> Optional[torch.Tensor]:
        return (_unit_columns(self._right) @ self.matrix(x).t()).view(-1)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        assert first is not None
        basis = orthonormal(first.view(self.rank, -1))
        return Sent((basis @ self.matrix(x)).view(-1), basis)

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        right = result.view(self.rank, -1) * turn.scale
        mean = (own.t() @ right).view(-1)
        self._right.copy_(torch.where(turn.ok, right, self._right))
        return mean, x.sub_(mean) if feedback else None

    def factors(self) -> Dict[str, torch.Tensor]:
        return {"right": self._right}


def _unit_columns(right: torch.Tensor) -> torch.Tensor:
    """Each column times the power of two that takes its largest magnitude to 1…2: the basis of ΣP is the same, and P
    neither overflows nor vanishes with the gradient's square."""
    largest = right.abs().amax(1, keepdim=True)
    exponent = torch.bitwise_right_shift(largest.view(torch.int32), 23).clamp_(1, 253)
    return right * torch.bitwise_left_shift(254 - exponent, 23).view(torch.float32)
