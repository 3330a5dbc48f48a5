"""What powersgd and acpsgd share. Factors are stored and sent transposed: rank × extent, column after column."""
from __future__ import annotations

import torch

from gradpress._device import random_words
from gradpress._device.codec import SUM, Place, Route, TensorCodec
from gradpress._device.spec import Spec


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the rows' span; finite whatever comes in."""
    finite = torch.nan_to_num(factor, nan=0.0, posinf=0.0, neginf=0.0)
    return torch.linalg.qr(finite.t(), mode="reduced")[0].t().contiguous()


class LowRank(TensorCodec):
    """Sends factors of a rank-r approximation of the rows × cols matrix."""

    route = Route(SUM, torch.float32)

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.rank = min(spec.rank, place.shape.rows, place.shape.cols)

    def matrix(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self.place.shape.rows, self.place.shape.cols)

    def first_right(self) -> torch.Tensor:
        """The host codec's first Q, in host memory."""
        key = random_words.key(self.place.seed, self.place.number, 0)
        return random_words.first_factor(key, (self.rank, self.place.shape.cols))
