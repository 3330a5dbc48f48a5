"""Random words as docs/wire_format.md defines them ("Random words"), computed where they are needed.

They equal the host codecs' to the bit, on every rank and device; no product exceeds 2**63.
"""
from __future__ import annotations

from typing import Tuple

import torch

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def _mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def key(seed: int, tensor: int, step: int) -> int:
    """Of the first encode (site 0) of a tensor that is not sharded (shard 0)."""
    mixed = _mix64(seed & _MASK64)
    for part in (tensor, step, 0, 0):
        mixed = _mix64(mixed ^ part)
    return mixed


def _times(x: torch.Tensor, factor: int) -> torch.Tensor:
    """x · factor mod 2**32."""
    low = (x & 0xFFFF) * factor
    high = (_right(x, 16) * factor) & 0xFFFF
    return (low + high * 2**16) & _MASK32


def _right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.bitwise_right_shift(x, bits)


def words(of: int, indices: torch.Tensor) -> torch.Tensor:
    """32-bit words, as int64, of a key and int64 indices."""
    x = (indices & _MASK32) ^ (of & _MASK32)
    x = _times(x ^ _right(x, 16), 0x21F0AAAD)
    x = ((x ^ _right(x, 15)) + (of >> 32)) & _MASK32
    x = _times(x, 0xD35A2D97)
    return x ^ _right(x, 15)


class Strata:
    """One index out of each of k strata of n elements, ascending: randomk's choice."""

    def __init__(self, elements: int, kept: int, device: torch.device) -> None:
        self._number = torch.arange(kept, dtype=torch.int64, device=device)
        bounds = torch.div(torch.arange(kept + 1, dtype=torch.int64) * elements, kept, rounding_mode="floor")
        self._begin = bounds[:-1].to(device)
        self._width = (bounds[1:] - bounds[:-1]).to(device)

    def draw(self, of: int) -> torch.Tensor:
        return self._begin + _right(words(of, self._number) * self._width, 32)


def first_factor(of: int, shape: Tuple[int, int]) -> torch.Tensor:
    """The first Q of the low-rank codecs, float32 in host memory: close to standard normal, exact everywhere."""
    terms = 12
    elements = shape[0] * shape[1]
    drawn = words(of, torch.arange(terms * elements, dtype=torch.int64))
    sums = _right(drawn, 8).view(elements, terms).sum(1)
    return ((sums - 6 * 2**24).to(torch.float64) * 2.0**-24).to(torch.float32).view(shape)
