"""What a rank saves so that training goes on where it stopped, on as many ranks or on another number of them."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence, Union

import torch

from gradpress import _native

FORMAT = 2

StateDict = Mapping[str, Any]


def as_tensor(data: bytes) -> torch.Tensor:
    """Bytes as torch.save and torch.load(weights_only=True) keep them in every version."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().numpy())


def checked(state: Union[StateDict, Sequence[StateDict]], rank: int, size: int) -> List[StateDict]:
    """All states that were given.

    Raises ValueError unless it is this rank's own state, of a job of this size, or every rank's, of a job of any size.
    """
    one = isinstance(state, Mapping)
    states: List[StateDict] = [state] if isinstance(state, Mapping) else list(state)
    if not states:
        raise ValueError("gradpress: load_state_dict: wanted a state or a list of all ranks' states, got nothing")
    for each in states:
        if not isinstance(each, Mapping) or each.get("format") != FORMAT:
            got = each.get("format") if isinstance(each, Mapping) else type(each).__name__
            raise ValueError(f"gradpress: load_state_dict: wanted a state of format {FORMAT}, got {got}")
    first = states[0]
    if one and (first["rank"], first["world_size"]) != (rank, size):
        raise ValueError(f"gradpress: load_state_dict: this state is rank {first['rank']}'s of {first['world_size']}, and "
                         f"this is rank {rank} of {size}: give the rank's own state, or the list of all ranks' states")
    ranks = sorted(each["rank"] for each in states)
    if not one and ranks != list(range(first["world_size"])):
        raise ValueError(f"gradpress: load_state_dict: wanted the states of all {first['world_size']} ranks, got those of "
                         f"{ranks}: the residuals of the missing ones would be lost")
    return states


def residuals_of(state: StateDict) -> Iterable[Any]:
    """(name, residual) for every parameter of which this rank's state keeps something."""
    checkpoint = as_bytes(state["checkpoint"])
    if checkpoint:
        everything = torch.frombuffer(bytearray(_native.checkpoint_residuals(checkpoint)), dtype=torch.float32)
        for name, residual in zip(state["names"], everything.split(list(state["elements"]))):
            if bool(residual.any()):
                yield name, residual
    yield from state["owed"].items()


def shared_out(states: Sequence[StateDict], rank: int, size: int, names: Sequence[str]) -> Dict[str, torch.Tensor]:
    """This rank's part of all residuals, by parameter.

    What is owed to the mean stays the same: the mean over `size` ranks divides by another number than before, so that
    residuals are scaled by the ratio. Raises ValueError on a parameter that the model does not have.
    """
    factor = size / states[0]["world_size"]
    mine: Dict[str, torch.Tensor] = {}
    known = set(names)
    for state in states:
        if state["rank"] % size != rank:
            continue
        for name, residual in residuals_of(state):
            if name not in known:
                raise ValueError(f"gradpress: load_state_dict: the state has a residual of {name}, which this model does not "
                                 "have")
            scaled = factor * residual.reshape(-1).float()
            mine[name] = mine[name] + scaled if name in mine else scaled
    return mine
