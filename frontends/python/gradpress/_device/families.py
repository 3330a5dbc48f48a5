"""Which class serves which codec."""
from __future__ import annotations

from typing import Dict, Type

from gradpress._device import spec as specs
from gradpress._device.acpsgd import AcpSgd
from gradpress._device.cast import Bf16, Fp16
from gradpress._device.codec import GATHER, Place, TensorCodec
from gradpress._device.efsign import EfSign
from gradpress._device.powersgd import PowerSgd
from gradpress._device.randomk import RandomK
from gradpress._device.raw import Raw
from gradpress._device.spec import Spec
from gradpress._device.topk import TopK

_FAMILIES: Dict[str, Type[TensorCodec]] = {
    "none": Raw, "fp16": Fp16, "bf16": Bf16, "topk": TopK, "randomk": RandomK, "efsign": EfSign, "powersgd": PowerSgd,
    "acpsgd": AcpSgd}
CODECS = tuple(_FAMILIES)
_ELEMENT_BYTES = {"torch.float16": 2, "torch.bfloat16": 2, "torch.float32": 4, "torch.float64": 8}


def parse(text: str) -> Spec:
    """Errors: ValueError on a text that is no codec of the device path."""
    spec = specs.parse(text)
    if spec.name not in _FAMILIES:
        raise ValueError(f"gradpress: codec \"{text}\" does not run on a device; the device path has {', '.join(CODECS)}")
    return spec


def make(spec: Spec, place: Place, least_elements: int, workers: int) -> TensorCodec:
    """A tensor that gains nothing travels raw: a small one, or one whose gathered payloads, each to all other workers, are
    more bytes than a sum of it."""
    family = _FAMILIES[spec.name]
    if family.elementwise:
        return family(spec, place)
    shape = place.shape
    raw = _ELEMENT_BYTES[str(place.dtype)] * shape.elements
    payload = spec.step_bytes(shape)
    if shape.elements >= least_elements and (shape.is_matrix or spec.family != "low-rank") and payload < raw:
        made = family(spec, place)
        if made.route.kind != GATHER or workers * payload < 2 * raw:
            return made
    return Raw(specs.parse("none"), place)
