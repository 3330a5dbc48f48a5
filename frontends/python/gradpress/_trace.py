"""When gradients become ready, as a trace for `gradpress plan`."""
from __future__ import annotations

import json
import statistics
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch


class Recorder:
    """Notes the time of every gradient for some steps, then writes the file (format gradpress-trace-1)."""

    def __init__(self, file: str, model: torch.nn.Module, parameters: Sequence[Tuple[str, torch.Tensor]], steps: int,
                 write: bool) -> None:
        self._file, self._model, self._write = file, type(model).__name__, write
        self._parameters = list(parameters)
        self._steps = steps
        self._times: List[Dict[int, float]] = []
        self._now: Dict[int, float] = {}
        self._begun: Optional[float] = None
        self._forward: List[float] = []
        self._hooks = [parameter.register_hook(self._note(index))
                       for index, (_, parameter) in enumerate(self._parameters)]
        self._hooks.append(model.register_forward_pre_hook(self._forward_begins))

    def _note(self, index: int) -> Any:
        def note(_: torch.Tensor) -> None:
            self._now[index] = time.perf_counter()
        return note

    def _forward_begins(self, *_: Any) -> None:
        self._begun = time.perf_counter()

    def step_ends(self) -> bool:
        """Whether the recording is complete."""
        if len(self._now) == len(self._parameters):
            self._times.append(self._now)
            if self._begun is not None:
                self._forward.append(min(self._now.values()) - self._begun)
        self._now = {}
        if len(self._times) < self._steps:
            return False
        for hook in self._hooks:
            hook.remove()
        if self._write:
            self._save()
        return True

    def _save(self) -> None:
        since_first = [{index: at - min(times.values()) for index, at in times.items()} for times in self._times]
        ready = {index: statistics.fmean(times[index] for times in since_first)
                 for index in range(len(self._parameters))}
        tensors = []
        previous = 0.0
        for index in sorted(ready, key=lambda i: ready[i]):
            name, parameter = self._parameters[index]
            tensors.append({"name": name, "shape": list(parameter.shape) or [1], "elements": parameter.numel(),
                            "ready_gap_us": round(1e6 * (ready[index] - previous), 3)})
            previous = ready[index]
        trace: Dict[str, Any] = {"format": "gradpress-trace-1", "model": self._model, "tensors": tensors}
        if self._forward:
            # Up to the first gradient: the begin of backward is in it.
            trace["forward_us"] = round(1e6 * statistics.fmean(self._forward), 3)
        with open(self._file, "w", encoding="utf-8") as out:
            json.dump(trace, out, indent=1)
            out.write("\n")
