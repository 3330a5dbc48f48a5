"""Step times of DDP's own all-reduce, which `auto` must beat."""
from __future__ import annotations

import statistics
import time
from typing import Callable, List, Optional

# The first steps pay for cold caches, and DDP rebuilds its buckets after one.
_SETTLING = 2
_TIMED = 3


class BaselineSteps:
    """Times consecutive steps from the begin of one to the begin of the next.

    settling: so many at the beginning do not count. timed: of the others the last so many do.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, settling: int = _SETTLING,
                 timed: int = _TIMED) -> None:
        self._clock, self._settling, self._timed = clock, settling, timed
        self._began: Optional[float] = None
        self._steps = 0
        self._times: List[float] = []

    def step_begins(self) -> None:
        """A step begins that DDP's own all-reduce synchronizes."""
        now = self._clock()
        if self._began is not None:
            self._steps += 1
            if self._steps > self._settling:
                self._times = [*self._times, now - self._began][-self._timed:]
        self._began = now

    def interrupt(self) -> None:
        """The step that begins runs otherwise: timing starts anew after it."""
        self._began = None
        self._steps = 0
        self._times = []

    def median_us(self) -> Optional[float]:
        """None while too few were timed."""
        return statistics.median(self._times) * 1e6 if len(self._times) == self._timed else None
