"""acpsgd: one factor of a rank-r approximation a step, P and Q in turn."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from gradpress._device.codec import Place, Sent, Turn
from gradpress._device.low_rank import LowRank, orthonormal
from gradpress._device.spec import Spec


class AcpSgd(LowRank):
    """P = X·Q̂ in even steps, Q = Xᵀ·P̂ in odd ones; the hatted factor is the basis of the last step's sum.

    The residual is against this rank's own factor.
    """

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.parity = 0  # 1: this step sends Q
        self._right = orthonormal(self.first_right()).to(place.device)
        # The basis of the second step if the first one was not finite.
        self._left = torch.eye(self.rank, place.shape.rows).to(place.device)

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        own = self._left @ self.matrix(x) if self.parity else self._right @ self.matrix(x).t()
        return Sent(own.view(-1), own)

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        total = result.view_as(own)
        mean = torch.mm(*self._sides(total * turn.scale))
        left_over = self.matrix(x).addmm_(*self._sides(own), alpha=-1.0) if feedback else None
        arrived = self._right if self.parity else self._left
        arrived.copy_(torch.where(turn.ok, orthonormal(total), arrived))
        self.parity = 1 - self.parity
        return mean.view(-1), left_over.view(-1) if left_over is not None else None

    def _sides(self, factor: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """The two matrices whose product the factor stands for in this step."""
        return (self._left.t(), factor) if self.parity else (factor.t(), self._right)

    def factors(self) -> Dict[str, torch.Tensor]:
        return {"left": self._left, "right": self._right}
