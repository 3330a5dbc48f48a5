"""Data parallel without DDP, as users of Horovod and of ACP-SGD know it."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Tuple

import torch
import torch.distributed as dist

from gradpress import _torch_versions
from gradpress._group import open_session
from gradpress._state import Rules


def broadcast_parameters(module: torch.nn.Module, root: int = 0, process_group: Any = None) -> None:
    """Gives every rank the parameters and buffers of one, a rank of the whole job; of any type, Gloo or not."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            flat = tensor.detach().reshape(-1).clone()
            # As bytes: Gloo does not know every type.
            dist.broadcast(flat.view(torch.uint8), root, group=process_group)
            tensor.copy_(flat.view(tensor.shape))


class DistributedOptimizer:
    """Wraps an optimizer: gradients are synchronised while backward runs, and `step()` waits for them.

    named_parameters: those of the model, the same on every rank.
    codec, rules, settings: as State's; a schedule is not possible here, `set_codec` is.
    backward_passes_per_step: gradients accumulate over so many before they are sent.

    All but `step`, `synchronize` and `zero_grad` goes to the wrapped optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[Tuple[str, torch.nn.Parameter]],
                 codec: str = "auto", *, rules: Rules = (), backward_passes_per_step: int = 1, process_group: Any = None,
                 **settings: Any) -> None:
        if backward_passes_per_step < 1:
            raise ValueError(f"gradpress: wanted at least one backward pass per step, got {backward_passes_per_step}")
        self._optimizer = optimizer
        self._passes = backward_passes_per_step
        group = process_group if process_group is not None else _torch_versions.default_group()
        named = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad][::-1]
        self._parameters = [parameter for _, parameter in named]
        self._session: Any = None
        if dist.get_world_size(group) > 1:
            self._session = open_session(group, named, {"codec": codec, "rules": list(rules), **settings})
        self._count = [0] * len(named)
        self._pushed: set[int] = set()
        self._accumulators = []  # hooks live as long as what they hang on
        for index, parameter in enumerate(self._parameters):
            accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            accumulator.register_hook(self._ready(index))
            self._accumulators.append(accumulator)

    def _ready(self, index: int) -> Callable[..., None]:
        def ready(*_: Any) -> None:
            self._count[index] += 1
            if self._session is not None and self._count[index] == self._passes:
                self._push([index])
        return ready

    def _push(self, indices: Iterable[int], last: bool = False) -> Any:
        indices = list(indices)
        self._pushed.update(indices)
        return self._session.push_gradients(indices, [self._parameters[i].grad for i in indices], last)

    def set_codec(self, codec: str) -> None:
        """Changes the codec from the next step on; every rank calls it between the same steps."""
        if self._session is not None:
            self._session.set_codec(codec)

    def synchronize(self) -> None:
        """Waits until every gradient is the mean over all workers. Parameters without a gradient count as zero."""
        if self._session is not None:
            rest = [i for i in range(len(self._parameters)) if i not in self._pushed]
            for index in rest:
                if self._parameters[index].grad is None:
                    self._parameters[index].grad = torch.zeros_like(self._parameters[index])
            self._push(rest, last=True).wait()
        self._pushed.clear()
        self._count = [0] * len(self._parameters)

    def step(self, closure: Optional[Callable[[], float]] = None) -> Any:
        """synchronize, then the optimizer's own step."""
        if closure is not None:
            raise ValueError("gradpress: DistributedOptimizer takes no closure: it would run backward again")
        self.synchronize()
        return self._optimizer.step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Not between backward and step: the gradients are under way."""
        if self._pushed:
            raise RuntimeError("gradpress: zero_grad between backward and step: gradients are being sent; call step() or "
                               "synchronize() first")
        self._optimizer.zero_grad(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
