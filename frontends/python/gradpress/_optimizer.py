"""Data parallel without DDP, as users of Horovod and of ACP-SGD know it."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from gradpress import _torch_versions
from gradpress._session import HostSession
from gradpress._settings import Rules, Settings
from gradpress._synchronizer import Synchronizer


def broadcast_parameters(module: torch.nn.Module, root: int = 0, process_group: Any = None) -> None:
    """Gives every rank the parameters and buffers of one, a rank of the whole job; of any type, Gloo or not."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            flat = tensor.detach().reshape(-1).clone()
            # As bytes: Gloo does not know every type.
            dist.broadcast(flat.view(torch.uint8), root, group=process_group)
            tensor.copy_(flat.view(tensor.shape))


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: gradients are synchronized while backward runs, and `step()` waits for them.

    optimizer: the optimizer that updates; its parameters must be among the named ones.
    named_parameters: those of the model, the same on every rank.
    codec: "auto", "acpsgd:4", …; `set_codec` changes it. A schedule is not possible here.
    rules and all further settings: as `gradpress.attach` documents them.
    backward_passes_per_step: gradients accumulate over so many passes before they are sent.
    process_group: None: the whole job's.

    To clip gradients or to unscale them (GradScaler), call `synchronize()` before, then `step()`.
    It is an Optimizer: schedulers accept it. `state_dict()` is the wrapped optimizer's; what compression keeps is in
    `compression_state_dict()`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[Tuple[str, torch.nn.Parameter]],
                 codec: str = "auto", *, rules: Rules = (), backward_passes_per_step: int = 1, process_group: Any = None,
                 **settings: Any) -> None:
        # Not Optimizer's own constructor: groups and state are the wrapped optimizer's.
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"gradpress: DistributedOptimizer wraps a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
            raise ValueError("gradpress: backward_passes_per_step: wanted at least one backward pass per step, got "
                             f"{backward_passes_per_step!r}")
        if not isinstance(codec, str):
            raise TypeError(f"gradpress: DistributedOptimizer: codec: wanted a text such as \"acpsgd:4\", got {codec!r}")
        self._optimizer = optimizer
        self._passes = backward_passes_per_step
        named = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad][::-1]
        self._check_parameters(named)
        self._sync = _Engine(type(optimizer).__name__, process_group, codec, rules, Settings.of(
            {"optimizer": optimizer, **settings} if settings.get("momentum") is not None else settings))
        self._sync.begin(named)
        self._parameters = [parameter for _, parameter in named]
        self._names = [name for name, _ in named]
        self._count = [0] * len(named)
        self._pushed: Set[int] = set()
        self._synchronized = True  # nothing to send since the last backward
        self._hooks = [_torch_versions.after_accumulation(parameter, self._ready(index))
                       for index, parameter in enumerate(self._parameters)]

    def _check_parameters(self, named: Sequence[Tuple[str, torch.nn.Parameter]]) -> None:
        known = {id(parameter) for _, parameter in named}
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.requires_grad and id(parameter) not in known:
                    raise ValueError(f"gradpress: DistributedOptimizer: parameter {place} of group {number} is none of the "
                                     "named parameters: its gradient would differ from rank to rank")

    def _ready(self, index: int) -> Callable[[], None]:
        def ready() -> None:
            self._synchronized = False
            self._count[index] += 1
            if self._count[index] > self._passes:
                raise RuntimeError(
                    f"gradpress: {self._count[index]} backward passes reached {self._names[index]} before step(), which is "
                    f"more than backward_passes_per_step={self._passes}: its gradient is being sent already; set "
                    "backward_passes_per_step to the number of passes you accumulate")
            if self._count[index] == self._passes:
                self._push([index])
        return ready

    def _push(self, indices: Sequence[int]) -> None:
        self._pushed.update(indices)
        if self._sync.session is not None:
            self._sync.session.push_gradients(indices, [self._gradient(index) for index in indices])

    def _gradient(self, index: int) -> torch.Tensor:
        gradient = self._parameters[index].grad
        assert gradient is not None
        return gradient

    # -- steps ---------------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until every gradient is the mean over all workers. Parameters without a gradient count as zero.

        Does nothing if that is so already: `step()` after it does not synchronize again.
        """
        if self._synchronized:
            return
        rest = [index for index in range(len(self._parameters)) if index not in self._pushed]
        for index in rest:
            if self._parameters[index].grad is None:
                self._parameters[index].grad = torch.zeros_like(self._parameters[index])
        self._push(rest)
        try:
            self._sync.end_step([self._gradient(index) for index in range(len(self._parameters))])
        finally:
            self._pushed.clear()
            self._count = [0] * len(self._parameters)
        self._synchronized = True

    def step(self, closure: Optional[Callable[[], float]] = None) -> Any:
        """`synchronize`, unless that was done since the last backward; then the optimizer's own step."""
        if closure is not None:
            raise ValueError("gradpress: DistributedOptimizer takes no closure: it would run backward again")
        self.synchronize()
        return self._optimizer.step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Not between backward and step: the gradients are being sent."""
        if self._pushed:
            raise RuntimeError("gradpress: zero_grad between backward and step: gradients are being sent; call step() or "
                               "synchronize() first")
        self._count = [0] * len(self._parameters)
        self._synchronized = True
        self._optimizer.zero_grad(*args, **kwargs)

    # -- compression -----------------------------------------------------------------------------------------------------

    def set_codec(self, codec: str) -> None:
        """Changes the codec from the next step on; every rank calls it between the same steps."""
        self._sync.set_codec(codec)

    def summary(self) -> str:
        """What runs, for people."""
        return self._sync.summary()

    def log(self) -> Dict[str, Any]:
        """Numbers of the last step; the keys are those of `State.log`."""
        return self._sync.log()

    def residuals(self) -> Dict[str, torch.Tensor]:
        """This rank's share of what error feedback keeps, by parameter."""
        return self._sync.residuals()

    def compression_state_dict(self) -> Dict[str, Any]:
        """As `State.state_dict`: residuals, factors, step of this rank."""
        return self._sync.state_dict()

    def load_compression_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]) -> None:
        """As `State.load_state_dict`."""
        self._sync.load_state_dict(state)

    def close(self) -> None:
        """Ends the thread and the connections; every rank does it, or ends."""
        self._sync.close()

    # -- the wrapped optimizer's -------------------------------------------------------------------------------------------

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._optimizer.state

    @property
    def defaults(self) -> Dict[str, Any]:  # type: ignore[override]
        return self._optimizer.defaults

    def state_dict(self) -> Dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        raise ValueError("gradpress: DistributedOptimizer: its engine knows the parameters it began with; add the group to the "
                         "optimizer, then make a new DistributedOptimizer")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._optimizer!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # not made yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)


class _Engine(Synchronizer):
    """The Synchronizer of an optimizer: all steps run in the engine."""

    def begin(self, parameters: Sequence[Tuple[str, torch.Tensor]]) -> None:
        self._take_parameters(parameters)
        if self._size > 1:
            meeting = self._meet()
            self._agree(meeting)
            self._open(meeting)

    def _on_device(self) -> bool:
        for name, tensor in self._parameters or ():
            if tensor.device.type != "cpu":
                raise ValueError(f"gradpress: DistributedOptimizer works on parameters in host memory, {name} is on "
                                 f"{tensor.device}; use DistributedDataParallel and gradpress.attach")
        return False

    @property
    def session(self) -> Optional[HostSession]:
        return self._session if isinstance(self._session, HostSession) else None

    def end_step(self, gradients: Sequence[torch.Tensor]) -> None:
        self._step += 1
        if self.session is None:
            for (name, _), gradient in zip(self._parameters or (), gradients):
                self._pay(name, gradient)
            return
        self._follow()
        self.session.end_step().wait()
        self._say()

    def log(self) -> Dict[str, Any]:
        return self._numbers("engine" if self.session is not None else "one worker", self._codec)

    def summary(self) -> str:
        if self.session is None:
            return f"gradpress ({self._name}): one worker: nothing is exchanged"
        return self._described()
