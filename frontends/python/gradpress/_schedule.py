"""Which codec runs when."""
from __future__ import annotations

from typing import Callable, Mapping, Optional, Union


class Schedule:
    """Codecs by step or epoch: Schedule({0: "none", 500: "acpsgd:4"}), or a function of the step.

    by: "step", or "epoch", which `State.set_epoch` tells.
    """

    def __init__(self, codecs: Union[Mapping[int, str], Callable[[int], str]], by: str = "step") -> None:
        if by not in ("step", "epoch"):
            raise ValueError(f'gradpress: a schedule goes by "step" or "epoch", got "{by}"')
        if not callable(codecs) and 0 not in codecs:
            raise ValueError("gradpress: a schedule says what runs at 0, this one begins at "
                             f"{min(codecs) if codecs else 'nothing'}")
        self.by = by
        self._codecs = codecs

    def codec(self, step: int, epoch: int) -> str:
        """What runs at this step of this epoch."""
        now = step if self.by == "step" else epoch
        if callable(self._codecs):
            return self._codecs(now)
        return self._codecs[max(begin for begin in self._codecs if begin <= now)]


def as_schedule(codec: Union[str, Schedule, Mapping[int, str], Callable[[int], str]]) -> Optional[Schedule]:
    """None for a codec that stays."""
    if isinstance(codec, str):
        return None
    return codec if isinstance(codec, Schedule) else Schedule(codec)
