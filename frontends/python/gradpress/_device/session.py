"""One model's gradients, compressed where they are, on DDP's own process group."""
from __future__ import annotations

from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from gradpress import _torch_versions
from gradpress._device import checkpoint, families
from gradpress._device import spec as specs
from gradpress._device.codec import GATHER, SUM, TWO_BYTE_SUM, Place, Route, Turn
from gradpress._device.layout import Kept, Layout, Part
from gradpress._device.two_byte_sum import TwoByteSum

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Message:
    """Payloads of one route in a bucket."""

    def __init__(self) -> None:
        self.payloads: List[torch.Tensor] = []
        self.elements = 0
        self.may_overwrite = True
        self.keep_lost = False
        self.result: Any = None
        self.lost: Optional[torch.Tensor] = None

    def add(self, payload: torch.Tensor) -> int:
        """Where it begins."""
        begin = self.elements
        self.payloads.append(payload)
        self.elements += payload.numel()
        return begin

    def joined(self) -> torch.Tensor:
        """Memory that a collective may overwrite, if may_overwrite or several."""
        return self.payloads[0] if len(self.payloads) == 1 and self.may_overwrite else torch.cat(self.payloads)


class _Encoded:
    """One part of a bucket under way."""

    def __init__(self, part: Part, x: torch.Tensor) -> None:
        self.part = part
        self.x = x
        self.own: Any = None
        self.begin = 0
        self.length = 0


class _Bucket:
    """A bucket under way."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.encoded: List[_Encoded] = []
        self.messages: Dict[Route, _Message] = {}
        self.uses: Optional[Tuple[int, int]] = None  # begin and number, in the float32 sums
        self.works: List[Any] = []
        self.sent: List[Any] = []  # must live until `works` are done


class DeviceSession:
    """A session for gradients that stay on their device, with the codecs that `families` has.

    A bucket is a message (one per kind of collective, if its codecs need several). Error feedback is float32 in device
    memory. Collectives are started by the caller of push() alone, in the order of buckets, on DDP's process group; what
    follows runs where the process group completes its work. powersgd and two-byte sums wait for their first exchange.

    If a message is not finite, its gradients become NaN on every rank, and its residuals and factors stay as they were.
    That is decided on the device. fp16, bf16 and two-byte gradients under none keep NaN in its elements instead.

    Threads: one pushes. All else between steps.
    """

    def __init__(self, process_group: Any, parameters: Sequence[Tuple[str, torch.Tensor]], settings: Mapping[str, Any]) -> None:
        """Of the settings codec, rules, least_elements, feedback and seed count.

        Errors: ValueError on a codec without a device path, or on a parameter of another type than the four float types.
        """
        self._group = process_group
        self._workers = dist.get_world_size(process_group)
        self._two_byte_sum = TwoByteSum(process_group)
        self._rules = list(settings.get("rules") or ())
        self._least_elements = _given(settings, "least_elements", 1024)
        self._feedback: Optional[bool] = settings.get("feedback")
        self._seed = _given(settings, "seed", 0)
        self._kept = [Kept(number, name, tensor) for number, (name, tensor) in enumerate(parameters)]
        for kept in self._kept:
            if kept.tensor.dtype not in _TYPES:
                raise ValueError(f"gradpress: parameter {kept.name} is {kept.tensor.dtype}; the device path compresses "
                                 f"{', '.join(str(one) for one in _TYPES)}: leave the parameter out of DDP")
        self._by_id = {id(kept.tensor): kept for kept in self._kept}
        self._layouts: Dict[int, Layout] = {}
        self._step = 0
        self._payload_bytes = 0
        self._last: Optional[Dict[str, Any]] = None
        self._under_way: List[_Bucket] = []
        self._flags: Dict[Tuple[float, ...], torch.Tensor] = {}
        self._log: List[str] = []
        self._float16_sums: Optional[bool] = None  # whether the process group adds float16; None: not asked yet
        self._running = ""
        self.set_codec(settings["codec"])

    @staticmethod
    def can(codec: str) -> bool:
        """Whether a codec's text has a device path."""
        try:
            families.parse(codec)
        except ValueError:
            return False
        return True

    # -- a step ----------------------------------------------------------------------------------------------------------

    def push(self, bucket: Any, used: Optional[AbstractSet[int]] = None) -> Any:
        """Encodes the bucket and starts its collectives.

        The future completes with the bucket's buffer, which then holds the mean.
        used: numbers of the parameters that this rank used in this step. The residual of a parameter that no rank used stays
            as it was, because DDP drops what is delivered to it. None, on every rank: all are used.
        Errors: ValueError on a parameter that is not the session's, or on a sparse gradient.
        """
        if self._running == "":
            raise RuntimeError("gradpress: this session is closed: attach again")
        layout = self._layout(bucket)
        under_way = _Bucket(bucket.buffer())
        with torch.no_grad(), _torch_versions.without_autocast(under_way.buffer.device.type):
            self._encode(layout, under_way)
            if used is not None:
                self._add_uses(under_way, used)
            self._send(under_way)
        if under_way.buffer.device.type != "cpu":
            # The end of the bucket runs on another stream. The step's memory must not be given to this one before backward
            # has joined the two, which it has when the next step begins.
            self._under_way.append(under_way)
        if bucket.is_last():
            self._last = {"payload_bytes": self._payload_bytes, "codec": self._running}
            self._payload_bytes = 0
            self._step += 1
        futures = [work.get_future() for work in under_way.works]

        def finish(done: Any) -> torch.Tensor:
            done.value()  # raises what went wrong
            for future in futures:
                future.value()
            with torch.no_grad(), _torch_versions.without_autocast(under_way.buffer.device.type):
                self._decode(under_way)
            return under_way.buffer

        return (futures[0] if len(futures) == 1 else torch.futures.collect_all(futures)).then(finish)

    def _layout(self, bucket: Any) -> Layout:
        index = bucket.index()
        if index == 0:
            self._under_way.clear()
        layout = self._layouts.get(index)
        if layout is None or not layout.fits(bucket.parameters()):
            layout = self._layouts[index] = Layout(bucket, self._find)
        return layout

    def _find(self, parameter: torch.Tensor) -> Kept:
        kept = self._by_id.get(id(parameter))
        if kept is None:
            raise ValueError(f"gradpress: a bucket holds a parameter of shape {list(parameter.shape)} that the model did not "
                             "have when gradpress was attached: attach after the last change of the model")
        return kept

    def _encode(self, layout: Layout, bucket: _Bucket) -> None:
        for part in layout.parts:
            x = part.gradient(bucket.buffer)
            if not part.codec.elementwise:
                x = x.to(torch.float32)
            if part.kept is not None and part.kept.residual is not None:
                # What another codec left behind goes out with the first step, whatever runs now.
                x = x + part.kept.residual
            bucket.encoded.append(_Encoded(part, x))
        sums = self._first_rounds(bucket)
        for one in bucket.encoded:
            codec = one.part.codec
            payload, one.own = codec.encode(one.x, self._step, sums.get(one), self._workers)
            message = bucket.messages.setdefault(codec.route, _Message())
            one.length = payload.numel()
            one.begin = message.add(payload)
            message.may_overwrite = message.may_overwrite and one.own is None
            message.keep_lost = message.keep_lost or (one.part.kept is not None and one.part.kept.feedback)

    def _add_uses(self, bucket: _Bucket, used: AbstractSet[int]) -> None:
        """A float per residual travels with the payloads: on how many ranks its parameter is used."""
        flags = tuple(float(one.part.kept.number in used) for one in bucket.encoded
                      if one.part.kept is not None and one.part.kept.residual is not None)
        if flags:
            device = bucket.buffer.device
            if flags not in self._flags:
                self._flags = {**(self._flags if len(self._flags) < 64 else {}), flags: torch.tensor(flags).to(device)}
            message = bucket.messages.setdefault(Route(SUM, torch.float32), _Message())
            message.may_overwrite = False
            bucket.uses = (message.add(self._flags[flags]), len(flags))

    def _first_rounds(self, bucket: _Bucket) -> Dict[_Encoded, torch.Tensor]:
        pending: List[Tuple[_Encoded, torch.Tensor]] = []
        for one in bucket.encoded:
            payload = one.part.codec.first_round(one.x)
            if payload is not None:
                pending.append((one, payload))
        if not pending:
            return {}
        summed = torch.cat([payload for _, payload in pending])
        self._payload_bytes += 4 * summed.numel()
        dist.all_reduce(summed, group=self._group, async_op=True).wait()
        return {one: piece for (one, _), piece in zip(pending, summed.split([payload.numel() for _, payload in pending]))}

    def _send(self, bucket: _Bucket) -> None:
        for route, message in bucket.messages.items():
            payload = message.joined()
            message.payloads.clear()
            if route.kind == SUM:
                message.result = payload
                bucket.works.append(dist.all_reduce(payload, group=self._group, async_op=True))
                self._payload_bytes += payload.numel() * payload.element_size()
            elif route.kind == TWO_BYTE_SUM:
                mean = self._two_byte_sum.start(payload, message.keep_lost)
                message.result, message.lost = mean.mean, mean.lost
                bucket.works.append(mean.work)
                bucket.sent.append(mean)
                self._payload_bytes += 2 * self._two_byte_sum.padded_elements(payload.numel())
            else:
                message.result = torch.empty(self._workers, payload.numel(), dtype=payload.dtype, device=payload.device)
                bucket.works.append(_torch_versions.all_gather_flat(message.result.view(-1), payload, self._group))
                bucket.sent.append(payload)
                self._payload_bytes += payload.numel()

    def _decode(self, bucket: _Bucket) -> None:
        turn = self._turn(bucket)
        uses = iter(bucket.messages[Route(SUM, torch.float32)].result.narrow(0, *bucket.uses).gt(0.5).unbind(0)
                    if bucket.uses is not None else ())
        for one in bucket.encoded:
            part, kept = one.part, one.part.kept
            message = bucket.messages[part.codec.route]
            result = message.result.narrow(-1, one.begin, one.length)
            feedback = kept is not None and kept.feedback
            mean, left_over = part.codec.decode(one.x, one.own, result, turn, feedback)
            if kept is not None and kept.residual is not None:
                fine = torch.isfinite(mean).all() if part.codec.elementwise else turn.ok
                if bucket.uses is not None:
                    fine = fine & next(uses)
                if left_over is None:
                    left_over = torch.zeros_like(kept.residual)
                elif message.lost is not None:
                    left_over.add_(message.lost.narrow(0, one.begin, one.length))
                kept.residual.copy_(torch.where(fine, left_over, kept.residual))
            # Last: x may be the bucket's own memory.
            part.gradient(bucket.buffer).copy_(mean)

    def _turn(self, bucket: _Bucket) -> Turn:
        """One flag for all of the bucket but its float16 sums, which may overflow element by element."""
        flags = [torch.isfinite(message.result).all() for route, message in bucket.messages.items()
                 if route.kind != GATHER and route != Route(SUM, torch.float16)]
        for one in bucket.encoded:
            route = one.part.codec.route
            if route.kind == GATHER:
                flags.append(one.part.codec.finite(bucket.messages[route].result.narrow(-1, one.begin, one.length)))
        if not flags:
            flags.append(torch.ones((), dtype=torch.bool, device=bucket.buffer.device))
        ok = flags[0] if len(flags) == 1 else torch.stack(flags).all()
        return Turn(self._workers, ok)

    # -- between steps -----------------------------------------------------------------------------------------------------

    def set_codec(self, codec: str) -> None:
        """Residuals carry over; factors begin anew. Every rank calls it: for fp16 it may start a collective.

        Errors: ValueError, and nothing has changed.
        """
        wanted = []
        for kept in self._kept:
            text = specs.rule_for(kept.name, self._rules)
            try:
                wanted.append(families.parse(codec if text is None else text))
            except ValueError as error:
                raise ValueError(f"{error} (for parameter {kept.name} on device {kept.tensor.device})") from None
        made = []
        for kept, spec in zip(self._kept, wanted):
            shape, tensor = specs.MatrixShape.of(kept.tensor.shape), kept.tensor
            place = Place(shape, tensor.device, tensor.dtype, kept.number, self._seed,
                          spec.name != "fp16" or self._adds_float16(tensor.device))
            made.append(families.make(spec, place, self._least_elements, self._workers))
        for kept, one in zip(self._kept, made):
            kept.codec = one
            kept.feedback = one.spec.name != "none" and (one.needs_feedback if self._feedback is None else self._feedback)
            if kept.feedback and kept.residual is None:
                kept.residual = torch.zeros(kept.tensor.numel(), dtype=torch.float32, device=kept.tensor.device)
        self._layouts.clear()
        self._running = codec

    def _adds_float16(self, device: torch.device) -> bool:
        if self._float16_sums is None:
            self._float16_sums = _torch_versions.adds_float16(self._group, device)
            if not self._float16_sums:
                self._log.append("this process group cannot add float16: fp16 gradients are added in float32 instead")
        return self._float16_sums

    def scale_residuals(self, factor: float) -> None:
        for kept in self._kept:
            if kept.residual is not None:
                kept.residual.mul_(factor)

    def residual(self, index: int) -> torch.Tensor:
        """Flat float32 in host memory, a copy; zeros where none is kept."""
        kept = self._one(index)
        if kept.residual is None:
            return torch.zeros(kept.tensor.numel(), dtype=torch.float32)
        return kept.residual.to("cpu", copy=True)

    def add_residual(self, index: int, residual: torch.Tensor) -> None:
        kept = self._one(index)
        if residual.numel() != kept.tensor.numel():
            raise ValueError(f"gradpress: residual of {kept.name}: wanted {kept.tensor.numel()} elements, got {residual.numel()}")
        more = residual.detach().reshape(-1).to(kept.tensor.device, torch.float32)
        if kept.residual is None:
            kept.residual = more.clone()
            self._layouts.clear()
        else:
            kept.residual.add_(more)

    def _one(self, index: int) -> Kept:
        if not 0 <= index < len(self._kept):
            raise ValueError(f"gradpress: wanted a parameter from 0 to {len(self._kept) - 1}, got {index}")
        return self._kept[index]

    def describe(self) -> Dict[str, Any]:
        """What runs: "running", a codec's text; "summary", for people; "tensors", each with name, elements and codec."""
        tensors = [{"name": kept.name, "elements": kept.tensor.numel(), "codec": kept.codec.spec.text()} for kept in self._kept]
        counts: Dict[str, int] = {}
        for one in tensors:
            counts[one["codec"]] = counts.get(one["codec"], 0) + 1
        codecs = ", ".join(f"{count} by {codec}" for codec, count in counts.items())
        sent = f"{self._last['payload_bytes']} B of payloads in the last step" if self._last else "no step yet"
        return {"running": self._running, "tensors": tensors,
                "summary": f"{len(tensors)} tensors on their device by torch operators ({codecs}), a message per bucket; {sent}"}

    def last_step(self) -> Optional[Dict[str, Any]]:
        """payload_bytes: what this rank gave to the process group; a two-byte sum counts once, as an all-reduce does."""
        return dict(self._last) if self._last is not None else None

    def take_log(self) -> List[str]:
        """Lines for the user since the last call."""
        lines, self._log = self._log, []
        return lines

    def checkpoint(self) -> bytes:
        """All that this rank's next step needs, in the format of checkpoint.py."""
        tensors = []
        for kept in self._kept:
            blocks = {} if kept.residual is None else {"residual": kept.residual.cpu()}
            blocks.update((name, factor.cpu()) for name, factor in kept.codec.factors().items())
            tensors.append(checkpoint.SavedTensor(kept.name, kept.codec.spec.text(), kept.codec.parity, blocks))
        return checkpoint.to_bytes(checkpoint.Saved(self._running, self._step, tensors))

    def restore(self, data: bytes) -> None:
        """Errors: ValueError on damaged bytes, or if parameters or codecs differ; nothing has changed then."""
        saved = checkpoint.from_bytes(data)
        if saved.codec != self._running:
            raise ValueError(f"gradpress: the checkpoint is of codec {saved.codec}, wanted {self._running}")
        if len(saved.tensors) != len(self._kept):
            raise ValueError(f"gradpress: the checkpoint has {len(saved.tensors)} parameters, wanted {len(self._kept)}")
        for kept, one in zip(self._kept, saved.tensors):
            wanted = {name: factor.shape for name, factor in kept.codec.factors().items()}
            got = {name: block.shape for name, block in one.blocks.items() if name != "residual"}
            residual = one.blocks.get("residual")
            if (kept.name, kept.codec.spec.text(), wanted) != (one.name, one.codec, got) or one.parity not in (0, 1) or \
                    (residual is not None and residual.shape != (kept.tensor.numel(),)):
                raise ValueError(f"gradpress: the checkpoint holds {one.name} by {one.codec} with {got}, wanted {kept.name} by "
                                 f"{kept.codec.spec.text()} with {wanted}")
        for kept, one in zip(self._kept, saved.tensors):
            residual = one.blocks.get("residual")
            if residual is None and kept.residual is not None:
                kept.residual.zero_()
            elif residual is not None:
                kept.residual = residual.to(kept.tensor.device)
            for name, factor in kept.codec.factors().items():
                factor.copy_(one.blocks[name])
            kept.codec.parity = one.parity
        self._step = saved.step
        self._layouts.clear()

    def close(self) -> None:
        """Drops residuals and factors. The process group is DDP's and stays."""
        self._kept, self._running = [], ""
        self._by_id.clear()
        self._layouts.clear()
        self._under_way.clear()


def _given(settings: Mapping[str, Any], name: str, default: int) -> int:
    value = settings.get(name)
    return default if value is None else int(value)
