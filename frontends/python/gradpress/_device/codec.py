"""What a codec on a device is: one interface for all families."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from gradpress._device.spec import MatrixShape, Spec

#: How a payload travels. SUM: all-reduce. TWO_BYTE_SUM: two-byte values, added in float32 (two_byte_sum.py); its result
#: is the mean. GATHER: every rank gets every payload; lengths are multiples of 4.
SUM, TWO_BYTE_SUM, GATHER = "sum", "two-byte sum", "gather"


class Route(NamedTuple):
    """Payloads of a bucket with equal routes travel as one message."""
    kind: str
    dtype: torch.dtype


class Place(NamedTuple):
    """The tensor that a codec is for."""
    shape: MatrixShape
    device: torch.device
    dtype: torch.dtype  # of the gradient
    number: int  # in the model
    seed: int
    adds_float16: bool = True  # whether the process group can


class Turn:
    """What all tensors of a bucket share when they are decoded."""

    def __init__(self, workers: int, ok: torch.Tensor) -> None:
        self.workers = workers
        self.ok = ok  # bool, one element: all that arrived is finite
        #: 1 / workers, or NaN if not ok: what is multiplied by it becomes a mean, or NaN. Float32, one element.
        self.scale = self.scale_in(torch.float32)

    def scale_in(self, dtype: torch.dtype) -> torch.Tensor:
        one_or_zero = self.ok.to(dtype)
        return one_or_zero / (one_or_zero * self.workers)


class Sent(NamedTuple):
    payload: torch.Tensor  # flat, of the route's dtype
    own: Any = None  # for decode


class TensorCodec:
    """The codec of one tensor, or of neighboring tensors if `elementwise`.

    `x` is flat: gradient plus residual, float32 (elementwise codecs without residual: the gradient's own type). No method
    may make the host wait for a value of the device. State lives in tensors that are updated in place, where `ok`.
    """

    route: Route
    #: NaN and overflow stay with their elements, as torch's own hooks have it; one codec may serve several tensors.
    elementwise = False
    #: Whether it keeps a residual unless the user says otherwise.
    needs_feedback = True

    def __init__(self, spec: Spec, place: Place) -> None:
        self.spec = spec
        self.place = place

    def first_round(self, x: torch.Tensor) -> Optional[torch.Tensor]:
        """A float32 payload that must be summed before encode(); None: there is one round only."""
        return None

    def encode(self, x: torch.Tensor, step: int, first: Optional[torch.Tensor], workers: int) -> Sent:
        """`first`: the sum of the first round's payloads."""
        raise NotImplementedError

    def finite(self, result: torch.Tensor) -> torch.Tensor:
        """Whether gathered payloads are finite; a bool tensor of one element. GATHER only."""
        raise NotImplementedError

    def decode(self, x: torch.Tensor, own: Any, result: torch.Tensor, turn: Turn,
               feedback: bool) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """The mean, and with feedback what of x was not sent. Flat. May overwrite x, which nobody reads afterwards.

        `result`: the message's part at this payload's place; for GATHER workers × length.
        """
        raise NotImplementedError

    def factors(self) -> Dict[str, torch.Tensor]:
        """State that a checkpoint keeps: float32 tensors by name, to be replaced in place."""
        return {}

    parity = 0  #: which of two kinds of steps comes next; a checkpoint keeps it
