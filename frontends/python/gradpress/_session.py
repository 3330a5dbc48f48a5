"""One model's gradients through the engine of libgradpress: buckets in, futures out."""
from __future__ import annotations

import atexit
import collections
import operator
import threading
import weakref
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from gradpress import _native, _torch_versions
from gradpress._errors import PeerLost
from gradpress._settings import Parameters

Futures = List[Tuple[Any, torch.Tensor]]

_KINDS = {getattr(torch, name): kind for name, kind in _native.TYPES.items()}

# Sessions whose thread must end before the interpreter does.
_open: "weakref.WeakSet[HostSession]" = weakref.WeakSet()
_JOIN_S = 30.0


@atexit.register
def _close_all() -> None:
    for session in list(_open):
        session.close()


def check_types(parameters: Parameters) -> None:
    """Raises ValueError that names a parameter whose gradients gradpress cannot take."""
    for name, tensor in parameters:
        if tensor.dtype not in _KINDS:
            raise ValueError(f"gradpress: parameter {name} is {tensor.dtype}: wanted float32, float16, bfloat16 or float64; "
                             "keep it out of DDP (_set_params_and_buffers_to_ignore_for_model), or do not attach")


class _Results:
    """What the events of an engine mean for those who wait. Threads: the fetching one writes; any reads."""

    def __init__(self) -> None:
        self.steps: Deque[Futures] = collections.deque()  # handed over, oldest first
        self.lines: Deque[str] = collections.deque()
        self.last_step: Optional[Mapping[str, Any]] = None
        self.failure: Optional[Exception] = None

    def fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        while self.steps:
            for future, _ in self.steps.popleft():
                future.set_exception(self.failure)


def _fetch(engine: _native.Engine, results: _Results) -> None:
    """Runs on a thread of its own: waits in C without the GIL, and takes the GIL once per event."""
    while True:
        try:
            event = engine.next()
        except (RuntimeError, ValueError) as error:
            results.fail(error)
            return
        if event.kind == "step":
            results.last_step = event.fields
            for future, value in results.steps.popleft():
                future.set_result(value)
        elif event.kind == "log":
            results.lines.append(str(event.fields["line"]))
        elif event.kind == "failed":
            results.fail(_native.exception(event.fields["code"], f"gradpress: {event.fields['message']}"))
        elif event.kind == "closed":
            results.fail(PeerLost("gradpress: closed in the middle of a step"))
            return


class _Layout(NamedTuple):
    """A bucket of DDP's as the engine knows it."""
    parameters: Sequence[torch.Tensor]
    number: int
    kind: int
    final: bool  # DDP rebuilds its buckets no more


class HostSession:
    """The engine of one model. Every rank makes it with the same parameters, in the same order.

    Threads: one pushes. All else between steps.
    """

    def __init__(self, connection: Mapping[str, Any], parameters: Parameters, options: Mapping[str, Any]) -> None:
        self._parameters = list(parameters)
        self._index = {id(tensor): index for index, (_, tensor) in enumerate(self._parameters)}
        tensors = [{"name": name, "shape": list(tensor.shape)} for name, tensor in self._parameters]
        self._engine = _native.Engine(connection, tensors, options)
        self._layouts: Dict[int, _Layout] = {}  # by DDP's bucket
        self._single: Dict[int, int] = {}  # by parameter
        self._handed: Futures = []  # of the step under way
        self._results = _Results()
        self._thread = threading.Thread(target=_fetch, args=(self._engine, self._results), name="gradpress events",
                                        daemon=True)
        self._thread.start()
        _open.add(self)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def push(self, bucket: Any, index: int, buffer: torch.Tensor, last: bool, rebuilt: bool) -> Any:
        """Hands DDP's bucket over; the future completes with its buffer once that holds the mean.

        rebuilt: DDP has rebuilt its buckets, so that one that was looked at since then stays as it is.
        """
        layout = self._layouts.get(index)
        if layout is None or not layout.final or not rebuilt:
            layout = self._layouts[index] = self._look(bucket, buffer, layout)._replace(final=rebuilt)
        return self._hand_over(layout.number, buffer, layout.kind, last)

    def _look(self, bucket: Any, buffer: torch.Tensor, known: Optional[_Layout]) -> _Layout:
        """The layout that is known, unless the bucket is new or DDP has rebuilt it."""
        parameters = bucket.parameters()
        if known is not None and len(known.parameters) == len(parameters) and all(
                map(operator.is_, known.parameters, parameters)):
            return known
        kind = self._kind(buffer)
        indices, offsets = [], []
        for position, (parameter, gradient) in enumerate(zip(parameters, bucket.gradients())):
            index = self._index.get(id(parameter))
            if index is None:
                raise ValueError(f"gradpress: parameter {position} of bucket {bucket.index()} is none of the model's that was "
                                 "attached; attach the model again after its parameters were replaced")
            offset, rest = divmod(gradient.data_ptr() - buffer.data_ptr(), buffer.element_size())
            if rest or not 0 <= offset <= buffer.numel() - gradient.numel() or not _dense(gradient):
                raise RuntimeError(f"gradpress: the gradient of {self._parameters[index][0]} does not lie in DDP's bucket "
                                   f"{bucket.index()} as expected with torch {torch.__version__}: report this")
            indices.append(index)
            offsets.append(offset)
        return _Layout(list(parameters), self._engine.layout(indices, offsets), kind, False)

    @staticmethod
    def _kind(buffer: torch.Tensor) -> int:
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise ValueError(f"gradpress: wanted gradients in host memory, one after the other, got {buffer.device}")
        return _KINDS[buffer.dtype]

    def push_gradients(self, indices: Sequence[int], gradients: Sequence[torch.Tensor]) -> None:
        """Hands single gradients over, each dense in host memory; `end_step` ends the step."""
        for index, gradient in zip(indices, gradients):
            if not _dense(gradient) or gradient.device.type != "cpu":
                raise ValueError(f"gradpress: the gradient of {self._parameters[index][0]}: wanted a dense tensor in host "
                                 f"memory, got {gradient.layout} on {gradient.device}")
            number = self._single.get(index)
            if number is None:
                number = self._single[index] = self._engine.layout([index], [0])
            self._engine.push(number, gradient.data_ptr(), _KINDS[gradient.dtype], False)

    def end_step(self) -> Any:
        """Ends a step without a further gradient. The future completes when the step has ended."""
        return self._hand_over(None, torch.empty(0), 0, True)

    def mark_unused(self, indices: Sequence[int]) -> None:
        """These parameters have no gradient on this rank in the step under way."""
        self._engine.unused(indices)

    def _hand_over(self, layout: Optional[int], buffer: torch.Tensor, kind: int, last: bool) -> Any:
        future: Any = torch.futures.Future()
        if self._results.failure is not None:
            # Not raised here: DDP would turn it into another type.
            future.set_exception(self._results.failure)
            _torch_versions.when_backward_ends(_Wait(future))
            return future
        self._handed.append((future, buffer))
        if last:
            # Before the engine can report the step.
            self._results.steps.append(self._handed)
            self._handed = []
        if layout is None:
            self._engine.end_step()
        else:
            self._engine.push(layout, buffer.data_ptr(), kind, last)
        if last:
            _torch_versions.when_backward_ends(_Wait(future))
        return future

    # -- between steps ---------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Optional[Exception]:
        """Why no further step is possible, or None."""
        return self._results.failure

    def last_step(self) -> Optional[Mapping[str, Any]]:
        """The report of the last step that ended well."""
        return self._results.last_step

    def take_log(self) -> List[str]:
        lines = []
        while self._results.lines:
            lines.append(self._results.lines.popleft())
        return lines

    def set_codec(self, codec: str) -> None:
        self._engine.set_codec(codec)

    def set_baseline(self, us: float) -> None:
        self._engine.set_baseline(us)

    def scale_residuals(self, factor: float) -> None:
        self._engine.scale_residuals(factor)

    def residual(self, index: int) -> torch.Tensor:
        out = torch.zeros(self._parameters[index][1].numel())
        self._engine.residual(index, out.data_ptr(), out.numel())
        return out

    def add_residual(self, index: int, residual: torch.Tensor) -> None:
        name, tensor = self._parameters[index]
        if residual.numel() != tensor.numel():
            raise ValueError(f"gradpress: residual of {name}: wanted {tensor.numel()} elements, got {residual.numel()}")
        plain = residual.detach().to("cpu", torch.float32).reshape(-1).contiguous()
        self._engine.add_residual(index, plain.data_ptr(), plain.numel())

    def checkpoint(self) -> bytes:
        return self._engine.checkpoint()

    def restore(self, checkpoint: bytes) -> None:
        self._engine.restore(checkpoint)

    def describe(self) -> Mapping[str, Any]:
        return self._engine.describe()

    def close(self) -> None:
        """Ends thread and connections; a step under way fails. Does nothing in a forked child."""
        if not self._engine.open:
            return
        self._engine.close()
        for future, _ in self._handed:
            future.set_exception(PeerLost("gradpress: closed in the middle of a step"))
        self._handed = []
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._engine.free()


class _Wait:
    """Ends backward with the step's own error: DDP would say that it got no tensor."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __call__(self) -> None:
        if _torch_versions.profiling():
            with torch.autograd.profiler.record_function("gradpress::wait"):
                self._future.wait()
        else:
            self._future.wait()


def _dense(gradient: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gaps, in any order: the order is the same on every rank."""
    if gradient.layout != torch.strided:
        return False
    wanted = 1
    for stride, extent in sorted(zip(gradient.stride(), gradient.shape)):
        if extent > 1:
            if stride != wanted:
                return False
            wanted *= extent
    return True
