"""Which codec runs when."""
from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Union


class Schedule:
    """Codecs by step or epoch: Schedule({0: "none", 500: "acpsgd:4"}), or a function of the step.

    by: "step", or "epoch", which `State.set_epoch` tells.
    """

    def __init__(self, codecs: Union[Mapping[int, str], Callable[[int], str]], by: str = "step") -> None:
        if by not in ("step", "epoch"):
            raise ValueError(f'gradpress: a schedule goes by "step" or "epoch", got "{by}"')
        if not callable(codecs):
            wrong = [key for key in codecs if not isinstance(key, int) or key < 0]
            if wrong:
                raise ValueError(f"gradpress: a schedule's keys are steps or epochs from 0 on, got {wrong[0]!r}")
            if 0 not in codecs:
                raise ValueError("gradpress: a schedule says what runs at 0, this one begins at "
                                 f"{min(codecs) if codecs else 'nothing'}")
        self.by = by
        self._codecs = codecs

    @classmethod
    def dgc_warmup(cls, ratio: float = 0.001, epochs: int = 4) -> Schedule:
        """Deep Gradient Compression's warm-up: 25 %, 6.25 %, … of the gradient in the first epochs, then `ratio`."""
        codecs: Dict[int, str] = {}
        for epoch in range(epochs):
            codecs[epoch] = f"dgc:{max(ratio, 0.25 ** (epoch + 1)):g}"
        codecs[epochs] = f"dgc:{ratio:g}"
        return cls(codecs, by="epoch")

    def texts(self) -> list[str]:
        """The codecs that are known beforehand."""
        return [] if callable(self._codecs) else list(self._codecs.values())

    def codec(self, step: int, epoch: int) -> str:
        """What runs at this step of this epoch."""
        now = step if self.by == "step" else epoch
        if callable(self._codecs):
            return self._codecs(now)
        return self._codecs[max(begin for begin in self._codecs if begin <= now)]

    def __repr__(self) -> str:
        what = "a function" if callable(self._codecs) else repr(dict(sorted(self._codecs.items())))
        return f"Schedule({what}, by={self.by!r})"


def as_schedule(codec: Any) -> Optional[Schedule]:
    """None: the codec stays."""
    if isinstance(codec, str):
        return None
    if isinstance(codec, Schedule):
        return codec
    if callable(codec) or isinstance(codec, Mapping):
        return Schedule(codec)
    raise TypeError('gradpress: codec: wanted "auto", the text of a codec such as "acpsgd:4", a schedule '
                    f'{{0: "none", 500: "acpsgd:4"}} or a function of the step, got {codec!r}')
