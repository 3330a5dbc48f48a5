"""Where parameters lie in a bucket, worked out once."""
from __future__ import annotations

import operator
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import torch

from gradpress._device.codec import TensorCodec


class Kept:
    """What lasts of a parameter from step to step."""

    codec: TensorCodec  # DeviceSession.set_codec sets it and `feedback`

    def __init__(self, number: int, name: str, tensor: torch.Tensor) -> None:
        self.number = number
        self.name = name
        self.tensor = tensor
        self.feedback = False
        self.residual: Optional[torch.Tensor] = None  # flat, float32, on the device, updated in place; None: zero


class Part(NamedTuple):
    """A parameter in a bucket, or neighbors that one elementwise codec without residuals serves together."""
    codec: TensorCodec
    kept: Optional[Kept]  # None: neighbors
    begin: int
    elements: int

    def gradient(self, buffer: torch.Tensor) -> torch.Tensor:
        """Flat, in the order of memory, as the host path has it: of tensors in other formats too."""
        return buffer.narrow(0, self.begin, self.elements)


class Layout:
    """Of one bucket, as long as DDP does not rebuild it."""

    def __init__(self, bucket: Any, find: Callable[[torch.Tensor], Kept]) -> None:
        self.parameters: List[torch.Tensor] = list(bucket.parameters())
        buffer = bucket.buffer()
        kept = [find(parameter) for parameter in self.parameters]
        if buffer.layout is not torch.strided:
            raise ValueError(f"gradpress: the gradient of {kept[0].name} is sparse; on a device only dense gradients can be "
                             "compressed: make the layer dense, or leave it out of DDP")
        self.parts: List[Part] = []
        for one, gradient in zip(kept, bucket.gradients()):
            self._add(one, gradient, gradient.storage_offset() - buffer.storage_offset())

    def fits(self, parameters: Sequence[torch.Tensor]) -> bool:
        return len(parameters) == len(self.parameters) and all(map(operator.is_, parameters, self.parameters))

    def _add(self, kept: Kept, gradient: torch.Tensor, begin: int) -> None:
        elements = gradient.numel()
        if not kept.codec.elementwise or kept.residual is not None:
            self.parts.append(Part(kept.codec, kept, begin, elements))
            return
        last = self.parts[-1] if self.parts else None
        if last is not None and last.kept is None and last.begin + last.elements == begin and \
                (type(last.codec), last.codec.route) == (type(kept.codec), kept.codec.route):
            self.parts[-1] = last._replace(elements=last.elements + elements)
        else:
            self.parts.append(Part(kept.codec, None, begin, elements))
