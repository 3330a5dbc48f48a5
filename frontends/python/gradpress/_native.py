"""libgradpress through its C interface (include/gradpress/c_api.h), called by ctypes.

ctypes releases the GIL during every call but that of a bucket. No thread of the library calls into Python.
"""
from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from gradpress._errors import PeerLost

API_VERSION = 1

INVALID_ARGUMENT, PEER_LOST, TIMED_OUT = 1, 4, 6

# The names of torch's element types that an engine takes, and what c_api.h calls them.
TYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}

_FUNCTIONS: Mapping[str, Tuple[Any, Sequence[Any]]] = {
    "gradpress_api_version": (c_uint32, []),
    "gradpress_version": (c_char_p, []),
    "gradpress_text_data": (c_void_p, [c_void_p]),
    "gradpress_text_size": (c_size_t, [c_void_p]),
    "gradpress_text_free": (None, [c_void_p]),
    "gradpress_group_connect": (c_int32, [c_char_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_group_free": (None, [c_void_p]),
    "gradpress_engine_make": (c_int32, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_engine_free": (None, [c_void_p]),
    "gradpress_engine_close": (None, [c_void_p]),
    "gradpress_engine_layout": (c_int32, [c_void_p, POINTER(c_uint32), POINTER(c_uint64), c_size_t, POINTER(c_uint32),
                                          POINTER(c_void_p)]),
    "gradpress_engine_push": (c_int32, [c_void_p, c_uint32, c_void_p, c_int32, c_int32, POINTER(c_void_p)]),
    "gradpress_engine_unused": (c_int32, [c_void_p, POINTER(c_uint32), c_size_t, POINTER(c_void_p)]),
    "gradpress_engine_end_step": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "gradpress_engine_next": (c_int32, [c_void_p, c_int64, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_engine_set_codec": (c_int32, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "gradpress_engine_set_baseline": (c_int32, [c_void_p, c_double, POINTER(c_void_p)]),
    "gradpress_engine_scale_residuals": (c_int32, [c_void_p, c_double, POINTER(c_void_p)]),
    "gradpress_engine_residual": (c_int32, [c_void_p, c_uint32, c_void_p, c_uint64, POINTER(c_void_p)]),
    "gradpress_engine_add_residual": (c_int32, [c_void_p, c_uint32, c_void_p, c_uint64, POINTER(c_void_p)]),
    "gradpress_engine_checkpoint": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_engine_restore": (c_int32, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "gradpress_engine_describe": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_checkpoint_residuals": (c_int32, [c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_codec_make": (c_int32, [c_char_p, POINTER(c_uint64), c_size_t, c_char_p, POINTER(c_void_p),
                                       POINTER(c_void_p)]),
    "gradpress_codec_free": (None, [c_void_p]),
    "gradpress_codec_bound": (c_size_t, [c_void_p, c_uint32]),
    "gradpress_codec_decode": (c_int32, [c_void_p, c_char_p, c_size_t, c_uint64, c_float, c_void_p, c_uint64,
                                         POINTER(c_void_p)]),
    "gradpress_codec_save_extras": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_codec_facts": (c_int32, [c_char_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gradpress_codec_step_bytes": (c_int32, [c_char_p, POINTER(c_uint64), c_size_t, POINTER(c_uint64), POINTER(c_void_p)]),
    "gradpress_codec_check": (c_int32, [c_char_p, POINTER(c_void_p)]),
    "gradpress_codec_describe": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
}


def _load() -> ctypes.CDLL:
    """The library beside this file, or the one that GRADPRESS_LIBRARY names."""
    path = os.environ.get("GRADPRESS_LIBRARY") or str(pathlib.Path(__file__).absolute().parent / "libgradpress.so")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"gradpress: cannot load its library: {error}. Install the gradpress wheel, or build the library "
                          "(./run build) and set GRADPRESS_LIBRARY to its path") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise ImportError(f"gradpress: {path} has no function {name}: it is another version than this package; "
                              "install both from one wheel") from error
        function.restype, function.argtypes = result, arguments
    if loaded.gradpress_api_version() < API_VERSION:
        raise ImportError(f"gradpress: {path} offers version {loaded.gradpress_api_version()} of the C interface, this "
                          f"package needs {API_VERSION}; install both from one wheel")
    return loaded


library = _load()
_push = ctypes.PyDLL(library._name)["gradpress_engine_push"]
_push.restype, _push.argtypes = _FUNCTIONS["gradpress_engine_push"]


def version() -> str:
    return bytes(library.gradpress_version()).decode()


def _take(text: c_void_p) -> bytes:
    """The bytes of a gradpress_text, which is freed."""
    try:
        return ctypes.string_at(library.gradpress_text_data(text), library.gradpress_text_size(text)) if text else b""
    finally:
        library.gradpress_text_free(text)


def exception(code: int, message: str) -> Exception:
    """What Python raises for a code of c_api.h."""
    if code == INVALID_ARGUMENT:
        return ValueError(message)
    if code == PEER_LOST:
        return PeerLost(message)
    return RuntimeError(message)


def _failure(code: int, error: c_void_p) -> Exception:
    text = _take(error).decode(errors="replace")
    return exception(code, text if text.startswith("gradpress") else f"gradpress: {text}")


def call(function: Any, *arguments: Any) -> None:
    """Calls a function whose last argument is the error; raises what it says."""
    error = c_void_p()
    code = function(*arguments, byref(error))
    if code:
        raise _failure(code, error)


def call_for_bytes(function: Any, *arguments: Any) -> bytes:
    """The same for a function that stores a text before the error."""
    text = c_void_p()
    call(function, *arguments, byref(text))
    return _take(text)


def check_codec(text: str) -> None:
    """Raises ValueError if no codec has this text. "auto" is none of the codecs but is fine for an engine."""
    if text != "auto":
        call(library.gradpress_codec_check, text.encode())


@functools.lru_cache(maxsize=256)
def codec_facts(text: str) -> Mapping[str, Any]:
    """What a codec's text says and what is true of that codec, as gradpress_codec_facts tells it. Errors: ValueError."""
    facts: Mapping[str, Any] = json.loads(call_for_bytes(library.gradpress_codec_facts, text.encode()))
    return facts


def codec_step_bytes(text: str, shape: Sequence[int]) -> int:
    """The bytes that a tensor's payloads take in a step, all rounds together."""
    found = c_uint64()
    call(library.gradpress_codec_step_bytes, text.encode(), (c_uint64 * len(shape))(*shape), len(shape), byref(found))
    return found.value


def checkpoint_residuals(checkpoint: bytes) -> bytes:
    """The residuals that a rank's checkpoint holds, float32, tensor after tensor."""
    return call_for_bytes(library.gradpress_checkpoint_residuals, checkpoint, len(checkpoint))


class Event(NamedTuple):
    """What an engine reports: a step, a failure, a log line, its end."""
    kind: str
    fields: Mapping[str, Any]


# Engines of this process. A forked child must neither use nor close them.
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


class Engine:
    """One model's engine. Threads: one hands buckets over, one calls `next`; any may make the other calls."""

    def __init__(self, group: Mapping[str, Any], tensors: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        self._handle = c_void_p()
        self._pid = os.getpid()
        handle = c_void_p()
        call(library.gradpress_group_connect, json.dumps(group).encode(), byref(handle))
        call(library.gradpress_engine_make, handle, json.dumps(tensors).encode(), json.dumps(options).encode(),
             byref(self._handle))
        _engines.add(self)

    def _live(self) -> c_void_p:
        if not self._handle:
            if os.getpid() != self._pid:
                raise RuntimeError(f"gradpress: this process was forked from process {self._pid}, which owns the "
                                   "connections; use gradpress in that process only")
            raise ValueError("gradpress: this was closed; attach the model again")
        return self._handle

    def layout(self, tensors: Sequence[int], offsets: Sequence[int]) -> int:
        count, number = len(tensors), c_uint32()
        call(library.gradpress_engine_layout, self._live(), (c_uint32 * count)(*tensors), (c_uint64 * count)(*offsets),
             count, byref(number))
        return number.value

    def push(self, layout: int, address: int, kind: int, last: bool) -> None:
        # With the GIL: it takes a lock for a moment, and no thread that holds that lock needs Python.
        error = c_void_p()
        code = _push(self._handle or self._live(), layout, address, kind, last, byref(error))
        if code:
            raise _failure(code, error)

    def unused(self, tensors: Sequence[int]) -> None:
        call(library.gradpress_engine_unused, self._live(), (c_uint32 * len(tensors))(*tensors), len(tensors))

    def end_step(self) -> None:
        call(library.gradpress_engine_end_step, self._live())

    def next(self) -> Event:
        """Waits for the next event."""
        event = json.loads(call_for_bytes(library.gradpress_engine_next, self._live(), -1))
        return Event(event.pop("event"), event)

    def set_codec(self, codec: str) -> None:
        call(library.gradpress_engine_set_codec, self._live(), codec.encode())

    def set_baseline(self, us: float) -> None:
        call(library.gradpress_engine_set_baseline, self._live(), us)

    def scale_residuals(self, factor: float) -> None:
        call(library.gradpress_engine_scale_residuals, self._live(), factor)

    def residual(self, tensor: int, out: int, elements: int) -> None:
        call(library.gradpress_engine_residual, self._live(), tensor, out, elements)

    def add_residual(self, tensor: int, residual: int, elements: int) -> None:
        call(library.gradpress_engine_add_residual, self._live(), tensor, residual, elements)

    def checkpoint(self) -> bytes:
        return call_for_bytes(library.gradpress_engine_checkpoint, self._live())

    def restore(self, checkpoint: bytes) -> None:
        call(library.gradpress_engine_restore, self._live(), checkpoint, len(checkpoint))

    def describe(self) -> Mapping[str, Any]:
        return dict(json.loads(call_for_bytes(library.gradpress_engine_describe, self._live())))

    @property
    def open(self) -> bool:
        return bool(self._handle)

    def close(self) -> None:
        """Ends thread and connections; a waiting `next` returns "closed". Nothing in a forked child."""
        if self._handle:
            library.gradpress_engine_close(self._handle)

    def free(self) -> None:
        """After `close`, once no thread is inside a call."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            library.gradpress_engine_free(handle)


def _forget() -> None:
    for engine in list(_engines):
        engine._handle = c_void_p()


os.register_at_fork(after_in_child=_forget)


class Codec:
    """One tensor's codec with its state, for what the device path shares with the host path."""

    def __init__(self, text: str, shape: Sequence[int], options: Optional[Mapping[str, Any]] = None) -> None:
        self._handle = c_void_p()
        call(library.gradpress_codec_make, text.encode(), (c_uint64 * len(shape))(*shape), len(shape),
             json.dumps(options or {}).encode(), byref(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library.gradpress_codec_free(self._handle)

    def bound(self, round_: int = 0) -> int:
        return int(library.gradpress_codec_bound(self._handle, round_))

    def decode(self, payload: bytes, step: int, weight: float, out: int, elements: int) -> None:
        call(library.gradpress_codec_decode, self._handle, payload, len(payload), step, weight, out, elements)

    def extras(self) -> bytes:
        return call_for_bytes(library.gradpress_codec_save_extras, self._handle)

    def describe(self) -> Mapping[str, Any]:
        return dict(json.loads(call_for_bytes(library.gradpress_codec_describe, self._handle)))
