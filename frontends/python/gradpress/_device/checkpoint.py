"""The device path's checkpoints as bytes.

    gradpress-device-1\\n                        19 bytes
    SHA-256 of all that follows                  32 bytes
    length of the header, u64 little-endian      8 bytes
    header, JSON in UTF-8: {"codec": "acpsgd:4", "step": 12, "tensors": [
        {"name": "fc.weight", "codec": "acpsgd:4", "parity": 1, "blocks": [["residual", [640]], ["left", [4, 10]], …]}, …]}
    the blocks in that order, float32, little-endian, without gaps
"""
from __future__ import annotations

import ctypes
import hashlib
import json
import math
from typing import Any, Dict, List, NamedTuple

import torch

_MAGIC = b"gradpress-device-1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_BEGIN = len(_MAGIC) + _DIGEST_BYTES


class SavedTensor(NamedTuple):
    name: str
    codec: str
    parity: int
    blocks: Dict[str, torch.Tensor]  # float32, in host memory


class Saved(NamedTuple):
    codec: str
    step: int
    tensors: List[SavedTensor]


def to_bytes(saved: Saved) -> bytes:
    tensors = [{"name": one.name, "codec": one.codec, "parity": one.parity,
                "blocks": [[name, list(block.shape)] for name, block in one.blocks.items()]} for one in saved.tensors]
    header = json.dumps({"codec": saved.codec, "step": saved.step, "tensors": tensors}).encode()
    pieces = [len(header).to_bytes(8, "little"), header]
    for one in saved.tensors:
        for block in one.blocks.values():
            dense = block.contiguous()
            pieces.append(ctypes.string_at(dense.data_ptr(), 4 * dense.numel()) if dense.numel() else b"")
    body = b"".join(pieces)
    return _MAGIC + hashlib.sha256(body).digest() + body


def from_bytes(data: bytes) -> Saved:
    """Errors: ValueError on damaged bytes."""
    data = bytes(data)
    if not data.startswith(_MAGIC):
        raise ValueError(f"gradpress: no checkpoint of the device path: wanted {_MAGIC!r} first, got {data[:len(_MAGIC)]!r}")
    if hashlib.sha256(data[_BEGIN:]).digest() != data[len(_MAGIC):_BEGIN]:
        raise ValueError(f"gradpress: the checkpoint of the device path, {len(data)} bytes, is damaged: its SHA-256 differs")
    try:
        return _parsed(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"gradpress: the checkpoint of the device path has a malformed header: {error!r}") from error


def _parsed(data: bytes) -> Saved:
    at = _BEGIN + 8 + int.from_bytes(data[_BEGIN:_BEGIN + 8], "little")
    header: Any = json.loads(data[_BEGIN + 8:at])
    tensors = []
    for one in header["tensors"]:
        blocks = {}
        for name, shape in one["blocks"]:
            elements = math.prod(int(extent) for extent in shape)
            if elements < 0 or at + 4 * elements > len(data):
                raise ValueError(f"{one['name']}/{name} ends after the last byte")
            blocks[str(name)] = (torch.frombuffer(bytearray(data[at:at + 4 * elements]), dtype=torch.float32)
                                 if elements else torch.zeros(0)).view(shape)
            at += 4 * elements
        tensors.append(SavedTensor(str(one["name"]), str(one["codec"]), int(one["parity"]), blocks))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last block")
    return Saved(str(header["codec"]), int(header["step"]), tensors)
