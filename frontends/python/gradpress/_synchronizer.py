"""What State and DistributedOptimizer have in common: parameters, codec, session, checkpoint."""
from __future__ import annotations

import logging
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

import torch
import torch.distributed as dist

from gradpress import _checkpoint, _group, _native, _torch_versions
from gradpress._device import DeviceSession, families
from gradpress._schedule import as_schedule
from gradpress._session import HostSession, check_types
from gradpress._settings import (Codec, Parameters, Rules, Settings, check_codec, check_rules, check_rules_match, codec_of)

_log = logging.getLogger("gradpress")

# Two-byte gradients that would travel raw do so in two bytes, and are summed in float32.
_TWO_BYTES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


_Self = TypeVar("_Self", bound="Synchronizer")


class Synchronizer:
    """One model's gradients among the ranks of a process group. Every rank makes the same calls in the same order."""

    def __init__(self, name: str, process_group: Any, codec: Codec, rules: Rules, settings: Settings) -> None:
        self._name = name
        self._group = process_group if process_group is not None else _torch_versions.default_group()
        self._size = dist.get_world_size(self._group)
        self._rank = dist.get_rank(self._group)
        self._written_codec = codec
        self._schedule = as_schedule(codec)
        for text in self._schedule.texts() if self._schedule else [codec]:
            check_codec(text, "codec")
        self._codec: str = self._schedule.codec(0, 0) if self._schedule else str(codec)
        check_codec(self._codec, "codec")
        self._rules = check_rules(rules)
        self._settings = settings
        self._parameters: Optional[Parameters] = None
        self._session: Union[HostSession, DeviceSession, None] = None
        self._loaded: Optional[Sequence[_checkpoint.StateDict]] = None  # for a session that is yet to be made
        self._owed: Dict[str, torch.Tensor] = {}  # residuals that no session keeps: they go into the next gradients
        self._step = 0  # of the next backward
        self._epoch = 0
        self._scaler: Any = None
        self._scale: Optional[float] = None
        self._optimizer: Optional[torch.optim.Optimizer] = None  # whose learning rate residuals follow
        self._rates: Optional[List[float]] = None  # of its groups, in the last step
        self._closed = False

    # -- the session -----------------------------------------------------------------------------------------------------

    def _take_parameters(self, parameters: Parameters) -> None:
        check_types(parameters)
        check_rules_match(self._rules, parameters)
        self._parameters = parameters

    def _agree(self, meeting: _group.Meeting, **more: Any) -> None:
        """Compares what every rank's user wrote."""
        parameters = self._parameters or ()
        _group.agree(meeting, {
            "codec": self._written_codec if isinstance(self._written_codec, str) else repr(self._schedule),
            "rules": self._rules, "the version of gradpress": _native.version(),
            "the model's parameters": f"{len(parameters)} parameters, "
                                      f"{sum(tensor.numel() for _, tensor in parameters)} elements in all",
            **self._settings.written(), **more})

    def _meet(self) -> _group.Meeting:
        return _group.meet(self._group, self._settings.start_timeout_s)

    def _timeout_s(self) -> float:
        if self._settings.timeout_s is not None:
            return self._settings.timeout_s
        return float(_torch_versions.timeout_of(self._group).total_seconds())

    def _open(self, meeting: _group.Meeting, **options: Any) -> None:
        """Makes the session; `options` are the engine's."""
        assert self._parameters is not None
        if self._on_device():
            self._session = DeviceSession(self._group, self._parameters, {
                "codec": self._codec, "rules": self._rules, "least_elements": self._settings.least_elements,
                "feedback": self._settings.feedback, "seed": self._settings.seed})
        else:
            connection = _group.connection(meeting, self._timeout_s(), self._settings.address, self._settings.local_size)
            self._session = HostSession(connection, self._parameters, {**self._engine_options(), **options})
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self._resume(loaded)
        self._settle_owed()

    def _engine_codec(self, codec: str) -> str:
        """The engine sums raw gradients as float32; two-byte ones travel raw in two bytes."""
        kinds = {tensor.dtype for _, tensor in self._parameters or ()}
        return _TWO_BYTES.get(next(iter(kinds)), codec) if codec == "none" and len(kinds) == 1 else codec

    def _engine_options(self) -> Dict[str, Any]:
        assert self._parameters is not None
        options = self._settings.engine_options(self._engine_codec(self._codec), self._rules)
        if self._codec == "auto" or not any(tensor.dtype in _TWO_BYTES for _, tensor in self._parameters):
            return options
        # A rule per parameter that stays raw whatever the codec is: the engine's own limit would send four bytes.
        least = self._settings.least_elements
        raw = [[name, _TWO_BYTES.get(tensor.dtype, "none")] for name, tensor in self._parameters
               if codec_of(name, tensor.numel(), "any", self._rules, least) == "none"]
        options["rules"] = raw + options["rules"]
        options["least_elements"] = 0
        return options

    def _on_device(self) -> bool:
        """Whether gradients are compressed where they are: those of a device, when each codec can be; those in host
        memory when GRADPRESS_DEVICE_PATH asks for it, which is for tests."""
        codecs = [self._codec, *(codec for _, codec in self._rules)]
        asked = os.environ.get("GRADPRESS_DEVICE_PATH", "")
        if asked not in ("", "torch", "host"):
            raise ValueError(f'gradpress: GRADPRESS_DEVICE_PATH: wanted "torch", "host" or nothing, got "{asked}"')
        missing = [codec for codec in codecs if not DeviceSession.can(codec)]
        if asked == "torch" and missing:
            raise ValueError(f"gradpress: GRADPRESS_DEVICE_PATH=torch: {', '.join(missing)} cannot be computed by torch's "
                             f"operators; {', '.join(families.CODECS)} can")
        elsewhere = any(tensor.device.type != "cpu" for _, tensor in self._parameters or ())
        return asked == "torch" or (asked == "" and elsewhere and not missing and self._settings.momentum is None)

    def _say(self) -> None:
        """Passes on what the engine has to say: rank 0's lines to the user, the others' for whoever debugs."""
        if self._session is not None:
            for line in self._session.take_log():
                _log.log(logging.INFO if self._rank == 0 else logging.DEBUG, "%s: %s", self._name, line)

    def _follow(self) -> None:
        """Scales the residuals with what they are watched for. Between steps."""
        self._follow_scaler()
        self._follow_learning_rate()

    def _follow_learning_rate(self) -> None:
        if self._optimizer is None:
            return
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        before, self._rates = self._rates, rates
        if before is None or before == rates:
            return
        # A rate of 0 applies nothing: the residuals wait, in the units of the last rate above it.
        factors = {old / new for old, new in zip(before, rates) if old > 0.0 and new > 0.0}
        if len(before) != len(rates) or (factors and max(factors) > (1.0 + 1e-6) * min(factors)):
            raise ValueError(f"gradpress: watch_learning_rate: the rates of the optimizer's groups went from {before} to {rates}; "
                             "residuals have one factor, so wanted all of them multiplied by the same number. Watch no learning "
                             "rate, or call scale_residuals")
        self._rates = [new if new > 0.0 else old for old, new in zip(before, rates)]
        if factors:
            self.scale_residuals(max(factors))

    def _follow_scaler(self) -> None:
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if self._scale is not None and scale != self._scale:
            self.scale_residuals(scale / self._scale)
        self._scale = scale

    def _pay(self, name: str, gradient: torch.Tensor) -> None:
        """Adds what is owed to a parameter to its gradient, where no session does."""
        owed = self._owed.pop(name, None)
        if owed is not None:
            # Elements lie in the order of memory, as in a session.
            flat = torch.as_strided(gradient, (gradient.numel(),), (1,))
            flat.add_(owed.to(gradient.device, gradient.dtype))

    def _settle_owed(self) -> None:
        """Gives what is owed to the session."""
        if self._session is None or not self._owed:
            return
        for index, (name, _) in enumerate(self._parameters or ()):
            owed = self._owed.pop(name, None)
            if owed is not None:
                self._session.add_residual(index, owed)

    # -- what users call -------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps synchronized so far."""
        return self._step

    @property
    def codec(self) -> str:
        """The codec asked for; what "auto" made of it is in `summary()` and `log()`."""
        return self._codec

    @property
    def failure(self) -> Optional[Exception]:
        """Why no further step is possible (for example a PeerLost), or None."""
        return getattr(self._session, "failure", None)

    def set_codec(self, codec: str) -> None:
        """Changes the codec from the next step on. Every rank calls it between the same steps. Residuals carry over.

        Raises ValueError on a text that is no codec's; nothing changes then.
        """
        check_codec(codec, "codec")
        if self._session is not None:
            self._session.set_codec(self._engine_codec(codec))
        self._codec = codec

    def set_epoch(self, epoch: int) -> None:
        """For schedules by epoch; every rank calls it between the same steps."""
        self._epoch = epoch

    def watch_scaler(self, scaler: Any) -> None:
        """Follows a GradScaler: when the loss scale changes, residuals are scaled with it.

        A step that overflows leaves residuals, momentum and factors of all parameters as they were, and NaN in
        gradients on every rank, so that every scaler skips it.
        """
        self._scaler = scaler

    def watch_learning_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Follows an optimizer's learning rate: when a schedule changes it, residuals are multiplied by old rate / new rate.

        Residuals are in units of the gradient. What error feedback has kept from steps of a larger rate is then applied with
        that rate, as in the published EF-SGD. Call it before the first step, on every rank; it is not for momentum correction,
        whose momentum does not depend on the rate.
        """
        if self._settings.momentum is not None:
            raise ValueError("gradpress: watch_learning_rate: wanted an attach without momentum=, got momentum correction: "
                             "momentum would be scaled with the residuals")
        self._optimizer = optimizer
        if self._rates is None:
            self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def scale_residuals(self, factor: float) -> None:
        """For loss scales that no GradScaler keeps: residuals are in units of the gradient. Between steps."""
        if self._session is not None:
            self._session.scale_residuals(factor)
        for owed in self._owed.values():
            owed.mul_(factor)

    def _numbers(self, path: str, codec: str) -> Dict[str, Any]:
        """The numbers of the last step; `codec` is what ran unless the session knows better."""
        last: Mapping[str, Any] = {}
        if self._session is not None and path != "ddp":
            last = self._session.last_step() or {}
        return {"gradpress/step": self._step, "gradpress/codec": last.get("running", codec), "gradpress/path": path,
                "gradpress/finite": bool(last.get("finite", True)), "gradpress/sent_bytes": int(last.get("sent_bytes", 0)),
                "gradpress/promised_bytes": int(last.get("promised_bytes", 0)),
                "gradpress/payload_bytes": int(last.get("payload_bytes", 0)),
                "gradpress/exposed_ms": last.get("exposed_us", 0.0) / 1000,
                "gradpress/raw_gradient_bytes": sum(tensor.numel() * tensor.element_size()
                                                    for _, tensor in self._parameters or ())}

    def _described(self, how: str = "") -> str:
        """What the session runs, for people, with a line per tensor."""
        assert self._session is not None
        described = self._session.describe()
        tensors = described.get("tensors", [])
        wide = max((len(str(tensor["codec"])) for tensor in tensors), default=0)
        return "\n".join([f"gradpress ({self._name}): {described['running']}{how}", str(described["summary"]).rstrip(),
                          *(f"  {tensor['codec']:<{wide}}  {tensor['elements']:>12,}  {tensor['name']}"
                            for tensor in tensors)])

    def residuals(self) -> Dict[str, torch.Tensor]:
        """This rank's share of what error feedback keeps, by parameter, float32 in host memory. Between steps."""
        kept: Dict[str, torch.Tensor] = {}
        for index, (name, tensor) in enumerate(self._parameters or ()):
            if self._session is not None:
                kept[name] = self._session.residual(index)
            elif name in self._owed:
                kept[name] = self._owed[name].clone()
            else:
                kept[name] = torch.zeros(tensor.numel())
        return kept

    def state_dict(self) -> Dict[str, Any]:
        """All that the next step needs, of this rank: save it on every rank. Between steps."""
        parameters = self._parameters or ()
        return {"format": _checkpoint.FORMAT, "step": self._step, "epoch": self._epoch, "codec": self._codec,
                "rank": self._rank, "world_size": self._size, "loss_scale": self._scale,
                "learning_rates": self._rates,
                "names": [name for name, _ in parameters], "elements": [tensor.numel() for _, tensor in parameters],
                "owed": {name: owed.clone() for name, owed in self._owed.items()},
                "checkpoint": _checkpoint.as_tensor(self._session.checkpoint() if self._session is not None else b"")}

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]) -> None:
        """Goes on from a state_dict, between steps.

        With this rank's own state, of a job of the same size and codec, exactly as if it had never stopped. With a list
        of all ranks' states, of a job of any size: their residuals are shared out, and what they owe to the mean is kept.
        The codec stays the one that was given here; a line of log says so if the state has another.
        """
        states = _checkpoint.checked(state, self._rank, self._size)
        first = states[0]
        if first["codec"] != self._codec and self._schedule is None:
            _log.log(logging.WARNING if self._rank == 0 else logging.DEBUG,
                     "%s: the state was saved with codec %s; training goes on with %s, and residuals carry over", self._name,
                     first["codec"], self._codec)
        if self._schedule is not None:
            self._codec = first["codec"]
            if self._session is not None:
                self._session.set_codec(self._engine_codec(self._codec))
        if self._session is not None or self._parameters is not None:
            self._resume(states)
        else:
            self._loaded = states
        self._step, self._epoch, self._scale = first["step"], first["epoch"], first["loss_scale"]
        self._rates = first.get("learning_rates", self._rates)

    def _resume(self, states: Sequence[_checkpoint.StateDict]) -> None:
        own = next((one for one in states if one["rank"] == self._rank), None)
        exact = (own is not None and own["world_size"] == self._size and self._session is not None
                 and own["checkpoint"].numel() > 0 and own["codec"] == self._codec)
        if exact and own is not None and self._session is not None:
            try:
                self._session.restore(_checkpoint.as_bytes(own["checkpoint"]))
            except ValueError as error:
                _log.log(logging.WARNING if self._rank == 0 else logging.DEBUG,
                         "%s: not resumed exactly, residuals only: %s", self._name, error)
            else:
                self._owed = {name: owed.clone() for name, owed in own["owed"].items()}
                self._settle_owed()
                return
        names = [name for name, _ in self._parameters or ()]
        self._owed = _checkpoint.shared_out(states, self._rank, self._size, names)
        self._settle_owed()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread and the connections; residuals are gone. Every rank does it, or ends."""
        self._closed = True
        if self._session is not None:
            self._session.close()
            self._session = None
