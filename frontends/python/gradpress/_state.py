"""The DDP hook and what belongs to it."""
from __future__ import annotations

import logging
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from gradpress import _core, _torch_versions
from gradpress._group import AnySession, Parameters, device_path, open_device_session, open_session
from gradpress._own_steps import OwnSteps
from gradpress._schedule import Schedule, as_schedule
from gradpress._trace import Recorder

Codec = Union[str, Schedule, Mapping[int, str], Callable[[int], str]]
Rules = Sequence[Tuple[str, str]]

_log = logging.getLogger("gradpress")
_FORMAT = 1


class State:
    """What synchronises one model's gradients; the state of `hook`.

    model: a module, DDP or not, whose parameters are kept by name. Without one, parameters are taken from DDP's buckets
        and named by their place in the first step's, so that checkpoints fit that layout alone.
    codec: "auto", "none", "acpsgd:4", …, or a schedule: {0: "none", 500: "acpsgd:4"}, a function of the step, or
        Schedule(…, by="epoch").
    rules: (pattern, codec) pairs; the first that fits a parameter's name goes before `codec`.
    start: steps at the beginning that run as DDP without a hook.
    process_group: DDP's; None: the whole job's.
    settings: bucket_bytes, least_elements, feedback, fusion, pipelining, seed, timeout_s, … (docs/pytorch.md).

    Every rank makes it with the same arguments. One State is for one model.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, codec: Optional[Codec] = None, *, rules: Rules = (),
                 start: int = 0, process_group: Any = None, **settings: Any) -> None:
        self._ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        if process_group is None:
            process_group = model.process_group if self._ddp else _torch_versions.default_group()
        self._group = process_group
        self._size = dist.get_world_size(process_group)
        self._rank = dist.get_rank(process_group)
        self._divide = self._ddp and bool(model.gradient_as_bucket_view)
        self._name = type(model.module if self._ddp else model).__name__ if model is not None else "model"
        self._parameters: Optional[Parameters] = None if model is None else _parameters_of(model)
        self._seen: list[torch.Tensor] = []  # without a model: in the order of the first step's buckets
        self._schedule = as_schedule(codec if codec is not None else "auto")
        self._codec = self._schedule.codec(0, 0) if self._schedule else (codec if codec is not None else "auto")
        self._rules = [(str(pattern), str(text)) for pattern, text in rules]
        self._start = start
        self._settings = settings
        self._session: Optional[AnySession] = None
        self._loaded: Optional[Sequence[Mapping[str, Any]]] = None
        self._rests = False  # auto decided for DDP's own way
        self._own_first = False  # auto is about to begin, once it is known what DDP's own steps take
        self._own_steps = OwnSteps()
        self._step = 0  # of the next backward
        self._epoch = 0
        self._scaler: Any = None
        self._scale: Optional[float] = None
        self._recorder: Optional[Recorder] = None
        if start == 0 and self._parameters is not None and self._wanted():
            self._make_session()

    # -- what DDP calls ------------------------------------------------------------------------------------------------

    def _on_bucket(self, bucket: Any) -> Any:
        if bucket.index() == 0:
            self._begin_step()
        if self._recorder is not None and bucket.is_last() and self._recorder.step_ends():
            self._recorder = None
        first_step = self._step == 0
        if bucket.is_last():
            self._step += 1
        if self._session is not None and not self._by_ddp():
            return self._session.push_bucket(bucket)
        if self._parameters is None:
            self._seen.extend(bucket.parameters())
            if bucket.is_last():
                self._parameters = [(f"parameter {i}", tensor) for i, tensor in enumerate(self._seen)]
        if self._size == 1:
            return _core.finished(bucket)
        # In the first step gradients do not lie in their buckets yet: there DDP multiplies.
        return _core.all_reduce(self._group, bucket, self._divide and not first_step)

    def _forward_begins(self) -> None:
        if self._recorder is not None:
            self._recorder.forward_begins()

    def _by_ddp(self) -> bool:
        """Whether DDP's own all-reduce runs although there is a session."""
        return self._rests or self._own_first

    def _begin_step(self) -> None:
        self._own_steps.step_begins()
        if self._schedule is not None:
            codec = self._schedule.codec(self._step, self._epoch)
            if codec != self._codec:
                self.set_codec(codec)
        if self._session is None and self._step >= self._start and self._parameters is not None and self._wanted():
            self._make_session()
        if self._scaler is not None:
            self._follow_scale(float(self._scaler.get_scale()))
        if self._session is not None and self._own_first:
            us = self._own_steps.median_us()
            if us is not None:  # after as many steps on every rank
                self._session.set_other_raw_us(us)
                self._own_first = False
        elif self._session is not None and not self._rests:
            for line in self._session.take_log():
                _log.warning("%s", line)
            # On every rank at the same step.
            last = self._session.last_step() if self._codec == "auto" else None
            self._rests = last is not None and bool(last["rests"])
        if self._session is not None and not self._by_ddp():
            self._own_steps.other_way()

    def _follow_scale(self, scale: float) -> None:
        if self._scale is not None and scale != self._scale and self._session is not None:
            self._session.scale_residuals(scale / self._scale)
        self._scale = scale

    # -- the session -----------------------------------------------------------------------------------------------------

    def _wanted(self) -> bool:
        """Whether DDP's own way is not enough. Where there is nobody to send to, it is."""
        return self._size > 1 and (self._codec != "none" or bool(self._rules))

    def _make_session(self) -> None:
        assert self._parameters is not None
        settings = {"codec": self._codec, "rules": self._rules, **self._settings}
        opened = open_device_session if device_path(self._parameters, settings) else open_session
        self._session = opened(self._group, self._parameters, settings)
        self._own_first = self._codec == "auto"
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self._give(loaded)

    # -- what users call -------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps synchronised so far."""
        return self._step

    @property
    def codec(self) -> str:
        """The codec asked for; what "auto" made of it is in `summary()`."""
        return self._codec

    def set_codec(self, codec: str) -> None:
        """Changes the codec from the next step on. Every rank calls it between the same steps. Residuals carry over."""
        self._codec = codec
        self._rests = False
        if self._session is not None:
            self._session.set_codec(codec)
            self._own_first = codec == "auto"
        elif self._step >= self._start and self._parameters is not None and self._wanted():
            self._make_session()

    def set_epoch(self, epoch: int) -> None:
        """For schedules by epoch; every rank calls it between the same steps."""
        self._epoch = epoch

    def watch_scaler(self, scaler: Any) -> None:
        """Follows a GradScaler: when the loss scale changes, residuals are scaled with it.

        A step that overflows leaves residuals as they were, and NaN in its gradients on every rank, so that every
        scaler skips it.
        """
        self._scaler = scaler

    def scale_residuals(self, factor: float) -> None:
        """For loss scales that no GradScaler keeps: residuals are in units of the gradient. Between steps."""
        if self._session is not None:
            self._session.scale_residuals(factor)

    def log(self) -> dict[str, Any]:
        """Numbers of the last step, for TensorBoard or W&B; bytes are this rank's, counted where they are sent."""
        step: dict[str, Any] = {"gradpress/step": self._step, "gradpress/codec": self._codec}
        last = self._session.last_step() if self._session is not None and not self._by_ddp() else None
        if last is not None and "payload_bytes" in last:
            step["gradpress/payload_bytes"] = last["payload_bytes"]
        elif last is not None:
            raw = sum(4 * tensor.numel() for _, tensor in self._parameters or ())
            step.update({
                "gradpress/finite": last["finite"], "gradpress/sent_bytes": last["sent_bytes"],
                "gradpress/promised_bytes": last["promised_bytes"], "gradpress/exposed_ms": last["exposed_us"] / 1000,
                "gradpress/raw_gradient_bytes": raw})
        return step

    def summary(self) -> str:
        """What runs, for people. Between steps."""
        if self._session is not None:
            way = "; by DDP's own all-reduce" if self._rests else ("; timing DDP without it" if self._own_first else "")
            return f"gradpress: {self._session.running()}{way}\n{self._session.summary()}"
        if self._size == 1:
            return "gradpress: one worker: nothing is exchanged"
        why = f"from step {self._start} on {self._codec}" if self._wanted() else "codec none"
        return f"gradpress: DDP's own all-reduce ({why})"

    def record_trace(self, file: str, steps: int = 5) -> None:
        """Writes when gradients become ready, over that many steps, as a trace for `gradpress plan`.

        Rank 0 writes. Steps in which some parameter has no gradient do not count.
        """
        if self._parameters is None:
            raise ValueError("gradpress: record_trace needs names: make the State with its model")
        self._recorder = Recorder(file, self._name, self._parameters, steps, self._rank == 0)

    def state_dict(self) -> dict[str, Any]:
        """All that the next step needs, of this rank: save it on every rank. Between steps."""
        state: dict[str, Any] = {"format": _FORMAT, "step": self._step, "epoch": self._epoch, "codec": self._codec,
                                 "rank": self._rank, "world_size": self._size, "loss_scale": self._scale,
                                 "residuals": {}, "checkpoint": b""}
        if self._session is not None:
            state["residuals"] = {name: residual.view(tensor.shape)
                                  for (name, tensor), residual in zip(self._parameters or (), self._residuals())
                                  if bool(residual.any())}
            state["checkpoint"] = self._session.checkpoint()
        return state

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]) -> None:
        """Goes on from a state_dict, between steps.

        With this rank's own, of a job of the same size and codec, exactly as if it had never stopped. With a list of all
        ranks' states, of a job of any size: their residuals are shared out, and their sum is kept.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states:
            raise ValueError("gradpress: load_state_dict wanted a state or a list of all ranks' states, got nothing")
        for one in states:
            if one.get("format") != _FORMAT:
                raise ValueError(f"gradpress: wanted a state of format {_FORMAT}, got {one.get('format')}")
        first = states[0]
        if isinstance(state, Mapping):
            if (first["rank"], first["world_size"]) != (self._rank, self._size):
                raise ValueError(f"gradpress: this state is rank {first['rank']}'s of {first['world_size']}, and this is rank "
                                 f"{self._rank} of {self._size}: give load_state_dict the rank's own state, or the list of "
                                 "all ranks' states")
        elif sorted(one["rank"] for one in states) != list(range(first["world_size"])):
            raise ValueError(f"gradpress: wanted the states of all {first['world_size']} ranks, got those of "
                             f"{sorted(one['rank'] for one in states)}: the missing ones' residuals would be lost")
        self._step, self._epoch, self._scale = first["step"], first["epoch"], first["loss_scale"]
        self._rests = False
        if first["codec"] != self._codec:
            self.set_codec(first["codec"])
        if self._session is not None:
            self._give(states)
        elif any(one["residuals"] for one in states):
            self._loaded = states

    def _residuals(self) -> Iterable[torch.Tensor]:
        assert self._session is not None
        return (self._session.residual(index) for index in range(len(self._parameters or ())))

    def _give(self, states: Sequence[Mapping[str, Any]]) -> None:
        assert self._session is not None
        self._own_first = False  # what auto had found goes on
        own = [one for one in states if one["rank"] == self._rank]
        if states[0]["world_size"] == self._size and own and own[0]["checkpoint"]:
            try:
                self._session.restore(own[0]["checkpoint"])
                return
            except ValueError as error:
                _log.info("not resumed exactly, residuals alone: %s", error)
        number = {name: index for index, (name, _) in enumerate(self._parameters or ())}
        for one in (one for one in states if one["rank"] % self._size == self._rank):
            for name, residual in one["residuals"].items():
                if name not in number:
                    raise ValueError(f"gradpress: the state has a residual of {name}, which this model has not")
                self._session.add_residual(number[name], residual.reshape(-1))

    def close(self) -> None:
        """Ends the thread and the connections; residuals are gone. Every rank does it, or ends."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("gradpress: a State holds connections and cannot be pickled; pickle its state_dict()")


def _parameters_of(model: torch.nn.Module) -> Parameters:
    """In the order in which backward is likely to finish them: DDP's own guess."""
    module = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = [(name, parameter) for name, parameter in module.named_parameters()
             if parameter.requires_grad and name not in ignored]
    if not named:
        raise ValueError("gradpress: the model has no parameter that requires a gradient")
    return named[::-1]
