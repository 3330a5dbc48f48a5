"""Compression on the gradients' own device, in torch operators alone: no custom kernels, and the host reads no values.

docs/pytorch.md, "Gradients on a device", says what it does and which bytes it sends.
"""
from gradpress._device.session import DeviceSession

__all__ = ["DeviceSession"]
