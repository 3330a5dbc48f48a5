"""Codecs as the device path sees them: what their texts say, and the bytes they send."""
from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional, Sequence

from gradpress import _native


class Spec(NamedTuple):
    """A parsed codec text."""
    name: str
    shortest: str
    family: str
    value: float = 0.0  # a sparsifier's ratio, a low-rank codec's rank

    @property
    def rank(self) -> int:
        return int(self.value) if self.family == "low-rank" else 0

    def text(self) -> str:
        return self.shortest

    def kept(self, elements: int) -> int:
        """Elements that a sparsifier keeps: ⌈ratio · elements⌉ in IEEE double, at least 1, at most all."""
        return min(max(math.ceil(self.value * elements), 1), elements)

    def step_bytes(self, shape: MatrixShape) -> int:
        """Bytes of one step's payloads."""
        return _native.codec_step_bytes(self.shortest, (shape.rows, shape.cols) if shape.is_matrix else (shape.elements,))


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
    """Errors: ValueError on a text that is no codec's."""
    facts = _native.codec_facts(text)
    if facts["keys"]:
        raise ValueError(f"gradpress: codec \"{text}\" does not run on a device: the device path has no keys, got "
                         f"{', '.join(facts['keys'])}")
    return Spec(facts["name"], facts["text"], facts["family"], facts["value"] or 0.0)


def rule_for(name: str, rules: Sequence[Sequence[str]]) -> Optional[str]:
    """The codec of the first rule whose pattern, with * and ?, matches the parameter's name."""
    for pattern, codec in rules:
        expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
        if re.fullmatch(expression, name, re.DOTALL):
            return codec
    return None
