"""The host's codecs for several workers in one process, through the C interface (include/gradpress/c_api.h)."""
import ctypes
import json
from ctypes import byref, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

import torch

_FUNCTIONS = {
    "gradpress_text_data": (c_char_p, [c_void_p]),
    "gradpress_text_free": (None, [c_void_p]),
    "gradpress_codec_make": (c_int32, [c_char_p, c_void_p, c_size_t, c_char_p, c_void_p, c_void_p]),
    "gradpress_codec_free": (None, [c_void_p]),
    "gradpress_codec_describe": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gradpress_codec_bound": (c_size_t, [c_void_p, c_uint32]),
    "gradpress_codec_encode": (c_int32, [c_void_p, c_void_p, c_uint64, c_uint64, c_uint32, c_char_p, c_size_t, c_void_p,
                                         c_size_t, c_void_p, c_void_p]),
    "gradpress_codec_decode": (c_int32, [c_void_p, c_char_p, c_size_t, c_uint64, c_float, c_void_p, c_uint64, c_void_p]),
    "gradpress_codec_finish": (c_int32, [c_void_p, c_uint32, c_void_p, c_uint64, c_void_p]),
}


class HostCodec:
    """One tensor's codec in every worker. `path`: libgradpress."""

    def __init__(self, path, codec, shape, workers, **options):
        self._library = ctypes.CDLL(path)  # a handle of its own: its declarations are nobody else's
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._handles = []
        for _ in range(workers):
            handle = c_void_p()
            self._call("make", codec.encode(), (c_uint64 * len(shape))(*shape), len(shape), json.dumps(options).encode(),
                       byref(handle))
            self._handles.append(handle)
        text = c_void_p()
        self._call("describe", self._handles[0], byref(text))
        self._traits = json.loads(self._library.gradpress_text_data(text))
        self._library.gradpress_text_free(text)
        self._step = 0

    def __del__(self):
        for handle in self._handles:
            self._library.gradpress_codec_free(handle)

    def mean(self, gradients):
        """One step: every worker's gradient, flat float32, to what all apply."""
        elements = gradients[0].numel()
        reduced, payloads = b"", []
        for round_ in range(self._traits["rounds"]):
            payloads = [self._encode(handle, gradient, round_, reduced) for handle, gradient in zip(self._handles, gradients)]
            if self._traits["reducible"] and self._traits["payload_type"] == "float32":
                total = sum(torch.frombuffer(bytearray(payload), dtype=torch.float32) for payload in payloads)
                reduced = ctypes.string_at(total.data_ptr(), 4 * total.numel())
        out = torch.zeros(elements)
        for handle in self._handles:
            out.zero_()
            for payload in [reduced] if reduced else payloads:
                self._call("decode", handle, payload, len(payload), self._step, 1.0 / len(self._handles), out.data_ptr(),
                           elements)
            self._call("finish", handle, len(self._handles), out.data_ptr(), elements)
        self._step += 1
        return out

    def _encode(self, handle, gradient, round_, reduced):
        room = self._library.gradpress_codec_bound(handle, round_)
        payload, used = ctypes.create_string_buffer(room), c_size_t()
        self._call("encode", handle, gradient.data_ptr(), gradient.numel(), self._step, round_, reduced, len(reduced), payload,
                   room, byref(used))
        return payload.raw[:used.value]

    def _call(self, name, *arguments):
        error = c_void_p()
        if getattr(self._library, f"gradpress_codec_{name}")(*arguments, byref(error)) != 0:
            raise RuntimeError(f"{name}: {self._library.gradpress_text_data(error).decode()}")
