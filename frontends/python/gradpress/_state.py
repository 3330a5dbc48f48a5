"""The state of the DDP hook."""
from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from gradpress import _torch_versions
from gradpress._baseline import BaselineSteps
from gradpress._session import HostSession
from gradpress._settings import Codec, Parameters, Rules, Settings
from gradpress._synchronizer import Synchronizer
from gradpress._trace import Recorder


class State(Synchronizer):
    """What synchronizes one DDP model's gradients; the state of `gradpress.hook`.

    model: a module, DDP or not, whose parameters are kept by name. Without one, parameters are taken from DDP's buckets
        and named by their place in the first step's, so that checkpoints fit that layout alone.
    process_group: DDP's; None: the model's, else the whole job's.
    codec, rules, start and all further settings: as `gradpress.attach` documents them.

    Every rank makes it with the same arguments. One State is for one model.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, codec: Codec = "auto", *, rules: Rules = (),
                 start: int = 0, process_group: Any = None, **settings: Any) -> None:
        model = _torch_versions.unwrapped(model)
        ddp = model if isinstance(model, DDP) else None
        # DDP owns its hook's state. A reference back would keep both, and DDP's hooks on the parameters, for ever.
        self._ddp: Callable[[], Optional[DDP]] = weakref.ref(ddp) if ddp is not None else _nothing
        self._module: Optional[torch.nn.Module] = ddp.module if ddp is not None else model
        if process_group is None and ddp is not None:
            process_group = ddp.process_group
        if not isinstance(start, int) or start < 0:
            raise ValueError(f"gradpress: start: wanted a number of steps from 0 on, got {start!r}")
        name = type(_torch_versions.unwrapped(self._module)).__name__ if self._module is not None else "model"
        super().__init__(name, process_group, codec, rules, Settings.of(settings))
        self._start = start
        self._suspended = False  # auto settled on DDP's own all-reduce
        self._timing = False  # auto first times DDP's own steps
        self._baseline = BaselineSteps()
        self._profiling = False  # torch's profiler records this step
        self._rebuilt = False  # DDP has rebuilt its buckets: they stay as they are
        self._recorder: Optional[Recorder] = None
        self._ran = {"path": "ddp", "codec": "none"}  # the last step
        self._seen: List[torch.Tensor] = []  # without a model: parameters in the order of the first step's buckets
        self._used: Optional[Set[int]] = None  # parameters with a gradient in this step, where DDP may drop others
        self._fresh: Optional[Set[int]] = None  # ids of parameters whose gradient does not lie in DDP's bucket already
        self._notes: List[Any] = []  # the hooks that fill the two
        if self._module is not None:
            self._take_parameters(_parameters_of(self._module))
            self._watch_unused()
            self._watch_fresh()
        if self._size > 1:
            meeting = self._meet()
            self._agree(meeting, start=start)
            if start == 0 and self._parameters is not None and self._wanted():
                self._make_session(meeting)

    # -- what DDP calls ------------------------------------------------------------------------------------------------

    def _on_bucket(self, bucket: Any) -> Any:
        index = bucket.index()
        if index == 0:
            self._profiling = _torch_versions.profiling()
        if self._profiling:
            with torch.autograd.profiler.record_function("gradpress::bucket"):
                return self._synchronize(bucket, index)
        return self._synchronize(bucket, index)

    def _synchronize(self, bucket: Any, index: int) -> Any:
        if index == 0:
            self._begin_step()
        last = bucket.is_last()
        if self._recorder is not None and last and self._recorder.step_ends():
            self._recorder = None
        first_step = self._step == 0
        if last:
            self._step += 1
        if self._session is None or self._by_ddp():
            return self._all_reduce(bucket, first_step, last)
        buffer = bucket.buffer()
        if buffer.is_sparse:
            return self._sparse(bucket, first_step, last)
        if not isinstance(self._session, HostSession):
            future = self._session.push(bucket, self._used)
        else:
            if last:
                self._mark_unused()
            future = self._session.push(bucket, index, buffer, last, self._rebuilt)
        if last and self._used is not None:
            self._used.clear()
        return future

    def _begin_step(self) -> None:
        if self._closed:
            raise RuntimeError("gradpress: this State was closed, and DDP cannot do without its hook; wrap the model in a new "
                               "DistributedDataParallel")
        self._baseline.step_begins()
        if self._schedule is not None:
            codec = self._schedule.codec(self._step, self._epoch)
            if codec != self._codec:
                self.set_codec(codec)
        if self._session is None and self._step >= self._start and self._parameters is not None and self._wanted():
            self._make_session(self._meet())
        self._follow()
        if self._timing:
            us = self._baseline.median_us()
            if us is not None and isinstance(self._session, HostSession):  # after as many steps on every rank
                self._session.set_baseline(us)
                self._timing = False
        elif self._session is not None and not self._suspended:
            self._say()
            # On every rank at the same step.
            last = (self._session.last_step() if self._codec == "auto" else None) or {}
            self._suspended = bool(last.get("suspended"))
            if last.get("baseline_steps", 0) > 0 and not self._suspended:
                # auto wants to compare with DDP's own steps of these minutes.
                self._baseline = BaselineSteps(settling=0, timed=int(last["baseline_steps"]))
                self._baseline.step_begins()
                self._timing = True
        ddp = self._ddp()
        self._rebuilt = ddp is not None and _torch_versions.has_rebuilt_buckets(ddp)
        if self._session is not None and not self._by_ddp():
            self._baseline.interrupt()
            self._ran = {"codec": self._codec, "path": "engine" if isinstance(self._session, HostSession) else "device"}
        else:
            self._ran = {"codec": "none", "path": "ddp"}

    def _by_ddp(self) -> bool:
        """Whether DDP's own all-reduce runs although there is a session."""
        return self._suspended or self._timing

    def _all_reduce(self, bucket: Any, first_step: bool, last: bool) -> Any:
        """What DDP does without a hook, bit for bit."""
        if self._used is not None and last:
            self._used.clear()
        buffer = bucket.buffer()
        if self._owed and not buffer.is_sparse:
            names = {id(tensor): name for name, tensor in self._parameters or ()}
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                self._pay(names.get(id(parameter), ""), gradient)
        if self._parameters is None:
            self._seen.extend(bucket.parameters())
            if last:
                self._take_parameters([(f"parameter {i}", tensor) for i, tensor in enumerate(self._seen)])
        if self._size == 1:
            done: Any = torch.futures.Future()
            done.set_result(buffer)
            return done
        self._scale_as_ddp(bucket, buffer, first_step)
        if self._fresh is not None and last:
            self._fresh.clear()
        work = torch.distributed.all_reduce(buffer, group=self._group, async_op=True)
        return work.get_future().then(_first)

    def _scale_as_ddp(self, bucket: Any, buffer: torch.Tensor, first_step: bool) -> None:
        """DDP multiplies by 1/W while it copies a gradient into its bucket, and divides by W one that lies there already.

        The two differ in the last bit unless W is a power of two.
        """
        ddp = self._ddp()
        if buffer.is_sparse or ddp is not None and _torch_versions.copies_in_batches(ddp):
            buffer.div_(self._size)
            return
        fresh = [True]
        if self._fresh is not None and not first_step:
            fresh = [id(parameter) in self._fresh for parameter in bucket.parameters()]
        if all(fresh):
            buffer.mul_(1.0 / self._size)
        elif not any(fresh):
            buffer.div_(self._size)
        else:
            for gradient, copied in zip(bucket.gradients(), fresh):
                gradient.mul_(1.0 / self._size) if copied else gradient.div_(self._size)

    def _sparse(self, bucket: Any, first_step: bool, last: bool) -> Any:
        """Sparse gradients travel raw, as DDP sends them."""
        if last and isinstance(self._session, HostSession):
            self._mark_unused()
            self._session.end_step()
        return self._all_reduce(bucket, first_step, last)

    # -- the session -----------------------------------------------------------------------------------------------------

    def _wanted(self) -> bool:
        """Whether DDP's own all-reduce is not enough. Where there is nobody to send to, it is."""
        return self._size > 1 and (self._codec != "none" or bool(self._rules) or self._settings.momentum is not None)

    def _make_session(self, meeting: Any) -> None:
        options = {"return_unused": True} if self._used is not None else {}
        self._open(meeting, **options)
        self._timing = self._codec == "auto" and isinstance(self._session, HostSession)

    def _watch_unused(self) -> None:
        """Where DDP drops the gradients of parameters that no rank used, what was delivered to them must not be lost."""
        ddp = self._ddp()
        if ddp is None or not (ddp.find_unused_parameters or ddp.static_graph):
            return
        if self._settings.momentum is not None:
            flag = "find_unused_parameters" if ddp.find_unused_parameters else "static_graph"
            raise ValueError(f"gradpress: momentum={self._settings.momentum} and {flag}=True of DistributedDataParallel exclude each "
                             "other: what was delivered to a parameter that no rank used has its momentum by then and cannot "
                             f"return to the residual; leave out momentum=, or make the model with {flag}=False")
        used: Set[int] = set()
        self._used = used
        self._notes += [parameter.register_hook(_Note(used, index))
                        for index, (_, parameter) in enumerate(self._parameters or ())]

    def _watch_fresh(self) -> None:
        """With bucket views, a gradient that was kept from the step before lies in its bucket already."""
        ddp = self._ddp()
        if ddp is None or not ddp.gradient_as_bucket_view or self._size & (self._size - 1) == 0:
            return
        self._fresh = set()
        self._notes += [parameter.register_hook(_NoteFresh(self._fresh, parameter))
                        for _, parameter in self._parameters or ()]

    def _mark_unused(self) -> None:
        if self._used is not None and isinstance(self._session, HostSession):
            self._session.mark_unused([index for index in range(len(self._parameters or ())) if index not in self._used])

    # -- what users call -------------------------------------------------------------------------------------------------

    def set_codec(self, codec: str) -> None:
        super().set_codec(codec)
        self._suspended = False
        if self._session is not None:
            self._timing = codec == "auto" and isinstance(self._session, HostSession)
        elif self._step >= self._start and self._parameters is not None and self._wanted():
            self._make_session(self._meet())

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]) -> None:
        super().load_state_dict(state)
        self._suspended = False
        self._timing = False  # what auto had found goes on

    def log(self) -> Dict[str, Any]:
        """Numbers of the last step, for TensorBoard or W&B; the same keys from the first step on.

        gradpress/step: steps so far. gradpress/codec: what ran. gradpress/path: who synchronized, "engine", "device" or
        "ddp". gradpress/finite: False if a gradient held NaN or infinity. gradpress/sent_bytes: what gradpress sent from
        this rank, counted where it is sent; 0 where torch's process group sends. gradpress/promised_bytes: what the plan
        says. gradpress/payload_bytes: this rank's payloads on the device path, else 0. gradpress/exposed_ms: time spent
        waiting after backward. gradpress/raw_gradient_bytes: all gradients of this rank, uncompressed.
        """
        return self._numbers(**self._ran)

    def summary(self) -> str:
        """What runs, for people: the codec of every tensor, messages and bytes. Between steps."""
        if self._session is None:
            if self._size == 1:
                return f"gradpress ({self._name}): one worker: nothing is exchanged"
            why = f"{self._codec} from step {self._start} on" if self._wanted() else "codec none"
            return f"gradpress ({self._name}): DDP's own all-reduce ({why})"
        if self._suspended:
            return self._described("; now by DDP's own all-reduce")
        return self._described("; timing DDP's own all-reduce first" if self._timing else "")

    def record_trace(self, file: str, steps: int = 5) -> None:
        """Writes when gradients become ready, over that many steps, as a trace for `gradpress plan`.

        Rank 0 writes. Steps in which some parameter has no gradient do not count.
        """
        if self._parameters is None or self._module is None:
            raise ValueError("gradpress: record_trace needs names: make the State with its model")
        self._recorder = Recorder(file, self._module, self._parameters, steps, self._rank == 0)

    def close(self) -> None:
        super().close()
        for note in self._notes:
            note.remove()

    def __reduce__(self) -> Any:
        # DDP keeps its hook's state among what torch.save(model) pickles.
        return DetachedState, (self._codec,)


class DetachedState:
    """What is left of a State in a pickled model: connections cannot be saved. Attach the loaded model anew."""

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"gradpress: this State was loaded with its model and has no connections, so no {name}; call "
                             "gradpress.attach on the loaded model, and load_state_dict with a saved state_dict()")


class _Note:
    """A gradient hook that notes its parameter as used."""

    def __init__(self, used: Set[int], index: int) -> None:
        self._used, self._index = used, index

    def __call__(self, _: torch.Tensor) -> None:
        self._used.add(self._index)


class _NoteFresh:
    """A gradient hook that notes its parameter if that has no gradient yet."""

    def __init__(self, fresh: Set[int], parameter: torch.Tensor) -> None:
        self._fresh, self._parameter = fresh, weakref.ref(parameter)

    def __call__(self, _: torch.Tensor) -> None:
        parameter = self._parameter()
        if parameter is not None and parameter.grad is None:
            self._fresh.add(id(parameter))


def _nothing() -> None:
    """In the place of a reference to a model that there is not."""


def _first(done: Any) -> torch.Tensor:
    result: torch.Tensor = done.value()[0]
    return result


def _parameters_of(module: torch.nn.Module) -> Parameters:
    """Those that DDP buckets, in the order in which backward is likely to finish them: DDP's own guess.

    Embeddings with sparse gradients are left out: those travel as DDP sends them.
    """
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    sparse = {id(part.weight) for part in module.modules()
              if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse}
    named = [(name, parameter) for name, parameter in module.named_parameters()
             if parameter.requires_grad and name not in ignored and id(parameter) not in sparse]
    if not named:
        raise ValueError("gradpress: the model has no parameter with a dense gradient")
    return named[::-1]
