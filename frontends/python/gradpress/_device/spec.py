"""The codecs that run on a device: their texts, and the bytes they send."""
from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional, Sequence

CODECS = ("none", "fp16", "bf16", "topk", "randomk", "efsign", "powersgd", "acpsgd")

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST_RANK = 1024


class Spec(NamedTuple):
    """A parsed codec text."""
    name: str
    ratio: float = 1.0  # topk, randomk: kept share of the elements
    rank: int = 0  # powersgd, acpsgd

    def text(self) -> str:
        if self.name in ("topk", "randomk"):
            return f"{self.name}:{self.ratio!r}"
        return f"{self.name}:{self.rank}" if self.rank else self.name

    def kept(self, elements: int) -> int:
        """Elements that a sparsifier keeps: ⌈ratio · elements⌉ in IEEE double, at least 1, at most all."""
        return min(max(math.ceil(self.ratio * elements), 1), elements)

    def payload_bytes(self, shape: MatrixShape) -> int:
        """Bytes of one step's payloads as docs/wire_format.md counts them; of acpsgd's two kinds of steps the first."""
        n = shape.elements
        if self.name == "topk":
            return 8 * self.kept(n)
        if self.name == "randomk":
            return 4 * self.kept(n)
        if self.name == "efsign":
            return sign_bytes(n) + 4
        if self.name in ("fp16", "bf16"):
            return 2 * n
        rank = min(self.rank, shape.rows, shape.cols)
        if self.name == "powersgd":
            return 4 * rank * (shape.rows + shape.cols)
        return 4 * rank * shape.rows if self.name == "acpsgd" else 4 * n


class MatrixShape(NamedTuple):
    """A tensor as low-rank codecs see it: first extent × product of the rest."""
    rows: int
    cols: int
    is_matrix: bool

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @staticmethod
    def of(shape: Sequence[int]) -> MatrixShape:
        return MatrixShape(shape[0] if len(shape) else 1, math.prod(shape[1:]), len(shape) > 1)


def sign_bytes(elements: int) -> int:
    """Bytes of so many sign bits, in words of 32."""
    return 4 * ((elements + 31) // 32)


def parse(text: str) -> Spec:
    """Errors: ValueError on a text that is no codec of the device path."""
    name, colon, value = text.partition(":")
    if name not in CODECS:
        raise ValueError(f"gradpress: codec \"{text}\" does not run on a device; the device path has {', '.join(CODECS)}")
    number = float(value) if _NUMBER.fullmatch(value) else None
    if name in ("topk", "randomk"):
        if number is None or not 0.0 < number <= 1.0:
            raise ValueError(f"gradpress: codec \"{text}\": wanted a ratio above 0 and at most 1 after \"{name}:\", "
                             f"got \"{value}\"")
        return Spec(name, ratio=number)
    if name in ("powersgd", "acpsgd"):
        if number is None or not 1 <= number <= _MOST_RANK or number != int(number):
            raise ValueError(f"gradpress: codec \"{text}\": wanted a whole rank from 1 to {_MOST_RANK} after \"{name}:\", "
                             f"got \"{value}\"")
        return Spec(name, rank=int(number))
    if colon:
        raise ValueError(f"gradpress: codec \"{text}\": {name} takes no value, got \"{value}\"")
    return Spec(name)


def rule_for(name: str, rules: Sequence[Sequence[str]]) -> Optional[str]:
    """The codec of the first rule whose pattern, with * and ?, matches the parameter's name."""
    for pattern, codec in rules:
        expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
        if re.fullmatch(expression, name, re.DOTALL):
            return codec
    return None
