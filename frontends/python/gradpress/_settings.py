"""What a user can set, checked."""
from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from gradpress import _native
from gradpress._schedule import Schedule

Codec = Union[str, Schedule, Mapping[int, str], Callable[[int], str]]
Rules = Sequence[Tuple[str, str]]
Parameters = Sequence[Tuple[str, torch.Tensor]]

_NUMBERS = {"bucket_bytes": 1, "least_elements": 0, "seed": 0, "auto_raw_steps": 1, "auto_window": 1}
_FLAGS = ("fusion", "pipelining", "sum_payloads", "strict", "nesterov", "momentum_masking")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keyword arguments of `attach`, which documents them, that belong to the engine and its connections."""

    bucket_bytes: int = 25_000_000
    least_elements: int = 1024
    feedback: Optional[bool] = None
    fusion: bool = True
    pipelining: bool = True
    sum_payloads: bool = True
    strict: bool = False
    seed: int = 0
    momentum: Optional[float] = None
    nesterov: bool = False
    momentum_masking: bool = True
    clip_norm: float = 0.0
    optimizer: Optional[torch.optim.Optimizer] = None
    auto_codecs: Optional[Sequence[str]] = None
    auto_raw_steps: Optional[int] = None
    auto_window: Optional[int] = None
    auto_cache: Optional[str] = None
    timeout_s: Optional[float] = None
    start_timeout_s: float = 120.0
    address: Optional[str] = None
    local_size: Optional[int] = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From keyword arguments. Raises TypeError on one that does not exist."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                raise TypeError(f"gradpress: there is no setting {name!r}{f'; did you mean {near[0]!r}?' if near else ''}; "
                                f"there are {', '.join(names)}")
        return cls(**given)

    def __post_init__(self) -> None:
        for name, least in _NUMBERS.items():
            value = getattr(self, name)
            optional = name.startswith("auto_") and value is None
            if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"gradpress: {name}: wanted a whole number of at least {least}, got {value!r}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"gradpress: {name}: wanted True or False, got {getattr(self, name)!r}")
        for name in ("timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if not (name == "timeout_s" and value is None) and not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"gradpress: {name}: wanted seconds above 0, got {value!r}")
        self._check_momentum()
        for codec in self.auto_codecs or ():
            check_codec(codec, "auto_codecs")

    def _check_momentum(self) -> None:
        if self.momentum is None:
            if self.nesterov or self.clip_norm:
                raise ValueError("gradpress: nesterov and clip_norm belong to momentum correction: give momentum=, too")
            return
        if not (isinstance(self.momentum, (int, float)) and 0 <= self.momentum < 1):
            raise ValueError(f"gradpress: momentum: wanted a number of at least 0 and below 1, got {self.momentum!r}")
        if self.optimizer is None:
            raise ValueError("gradpress: momentum correction replaces the optimizer's momentum: give optimizer=, so that it "
                             "can be checked that the optimizer's own is off")
        for number, group in enumerate(self.optimizer.param_groups):
            if group.get("momentum", 0) != 0 or "betas" in group:
                raise ValueError(f"gradpress: momentum={self.momentum} replaces the optimizer's momentum, but parameter group "
                                 f"{number} of {type(self.optimizer).__name__} has its own: use SGD with momentum=0")

    def engine_options(self, codec: str, rules: Rules) -> Dict[str, Any]:
        """As gradpress_engine_make takes them."""
        options: Dict[str, Any] = {"codec": codec, "rules": [list(rule) for rule in rules]}
        for name in ("bucket_bytes", "least_elements", "fusion", "pipelining", "sum_payloads", "strict", "seed"):
            options[name] = getattr(self, name)
        if self.feedback is not None:
            options["feedback"] = self.feedback
        if self.momentum is not None:
            options["momentum"] = {"momentum": self.momentum, "nesterov": self.nesterov, "masking": self.momentum_masking,
                                   "clip_norm": self.clip_norm}
        automatic = {"codecs": None if self.auto_codecs is None else list(self.auto_codecs),
                     "raw_steps": self.auto_raw_steps, "window": self.auto_window, "cache": self.auto_cache}
        options["auto"] = {name: value for name, value in automatic.items() if value is not None}
        return options

    def written(self) -> Dict[str, str]:
        """What every rank must give alike, as text."""
        apart = ("optimizer", "address")
        return {field.name: repr(getattr(self, field.name)) for field in dataclasses.fields(self)
                if field.name not in apart}


def check_codec(codec: Any, where: str) -> None:
    """Raises TypeError or ValueError unless it is the text of a codec, or "auto"."""
    if not isinstance(codec, str):
        raise TypeError(f'gradpress: {where}: wanted the text of a codec such as "acpsgd:4", got {codec!r}')
    try:
        _native.check_codec(codec)
    except ValueError as error:
        raise ValueError(f"gradpress: {where}={codec!r}: {str(error).removeprefix('gradpress: ')}") from None


def check_rules(rules: Any) -> List[Tuple[str, str]]:
    """The rules as a list of pairs."""
    wanted = 'gradpress: rules: wanted a list of (pattern, codec) pairs such as [("*.bias", "none")], got '
    if isinstance(rules, (str, bytes, Mapping)) or not isinstance(rules, Sequence):
        raise TypeError(f"{wanted}{rules!r}")
    for rule in rules:
        if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) != 2 or not isinstance(rule[0], str):
            raise TypeError(f"{wanted}{rule!r} in it")
        check_codec(rule[1], f"rules[{rule[0]!r}]")
    return [(str(pattern), str(codec)) for pattern, codec in rules]


def check_rules_match(rules: Rules, parameters: Parameters) -> None:
    """Raises ValueError for a rule that no parameter's name fits."""
    names = [name for name, _ in parameters]
    for pattern, _ in rules:
        # As the engine matches: * and ? only.
        plain = pattern.replace("[", "[[]")
        if not any(fnmatch.fnmatchcase(name, plain) for name in names):
            near = difflib.get_close_matches(pattern, names, 3) or names[:3]
            raise ValueError(f"gradpress: rules: no parameter's name fits {pattern!r}; names here are like "
                             f"{', '.join(map(repr, near))}")


def codec_of(name: str, elements: int, codec: str, rules: Rules, least_elements: int) -> str:
    """The codec that a parameter is to take."""
    if elements < least_elements:
        return "none"
    for pattern, text in rules:
        if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
            return text
    return codec
