"""The device path, which is written in torch operators, on tensors in host memory, where no operator may let the host
read a value, and on tensors without any memory ("meta")."""
import importlib.util
import math
import struct

import models
import torch
import torch.distributed as dist
import workers
from gradpress import _torch_versions
from gradpress._device import DeviceSession, checkpoint, families, random_words
from gradpress._device import spec as specs
from gradpress._device.codec import Place
from host_codec import HostCodec
from host_reads import HostRead, NoHostReads

FEEDBACK = ("acpsgd:4", "powersgd:2", "topk:0.05", "randomk:0.05", "efsign")
CODECS = FEEDBACK + ("fp16", "bf16")


class Guarded(DeviceSession):
    """Fails on every host read, in the hook and in the threads that complete collectives."""

    def _encode(self, *args):
        with NoHostReads():
            return super()._encode(*args)

    def _send(self, *args):
        with NoHostReads():
            return super()._send(*args)

    def _decode(self, *args):
        with NoHostReads():
            return super()._decode(*args)


class Bucket:
    """As DDP hands it over; for gradients that DDP itself does not take on this backend."""

    def __init__(self, parameters, gradients, index=0, last=True):
        self._parameters = parameters
        self._index = index
        self._last = last
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
        sizes = [gradient.numel() for gradient in gradients]
        self._gradients = [flat.view(gradient.shape) for flat, gradient in zip(self._buffer.split(sizes), gradients)]

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def parameters(self):
        return self._parameters

    def gradients(self):
        return self._gradients

    def buffer(self):
        return self._buffer


def session_of(parameters, codec, **settings):
    named = [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]
    return Guarded(dist.distributed_c10d._get_default_group(), named, {"codec": codec, **settings})


def reduced(session, parameters, gradients, **options):
    bucket = Bucket(parameters, gradients)
    value = session.push(bucket, **options).wait()
    assert value is bucket.buffer() or torch.equal(value, bucket.buffer())
    return [gradient.clone() for gradient in bucket.gradients()]


def hooked(net, codec, **settings):
    named = [(name, parameter) for name, parameter in net.module.named_parameters()][::-1]
    session = Guarded(net.process_group, named, {"codec": codec, **settings})
    net.register_comm_hook(session, lambda state, bucket: state.push(bucket))
    return session


def attached(codec, options=None, **settings):
    net = models.wrapped(**(options or {}))
    return net, hooked(net, codec, **settings)


def residuals_of(session):
    return {one["name"]: session.residual(index) for index, one in enumerate(session.describe()["tensors"])}


def noise(shape, seed, kind=torch.float32):
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return torch.randn(shape, generator=generator).to(kind)


def everywhere(tensor):
    """Every rank's, in the order of ranks."""
    as_bytes = tensor.contiguous().view(-1).view(torch.uint8)
    others = [torch.empty_like(as_bytes) for _ in range(dist.get_world_size())]
    dist.all_gather(others, as_bytes)
    return [other.view(tensor.dtype).view(tensor.shape) for other in others]


def refused(call, *words):
    try:
        call()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"taken; wanted a ValueError with {words}")


# -- without the host's values -------------------------------------------------------------------------------------------


def the_mode_fails_on_host_reads():
    x = torch.arange(4.0)
    for read in (lambda: x.sum().item(), lambda: float(x[0]), lambda: bool(x.sum() > 1), lambda: x.nonzero(),
                 lambda: x[x > 1], lambda: torch.equal(x, x), lambda: x.unique(), lambda: x.masked_select(x > 1),
                 lambda: x.to("cpu", torch.float64)):
        try:
            with NoHostReads():
                read()
        except HostRead:
            continue
        raise AssertionError("a host read passed")


class DoneWork:
    def wait(self):
        pass

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([])
        return future


def all_codecs_run_on_tensors_without_memory():
    """On "meta" there is nothing to read: a host read, or a tensor that was left in host memory, fails."""
    names = {dist: ("all_reduce", "all_to_all_single"), _torch_versions: ("all_gather_flat",)}
    kept = [(module, name, getattr(module, name)) for module, of_module in names.items() for name in of_module]
    try:
        for module, name, _ in kept:
            setattr(module, name, lambda *args, **options: DoneWork())
        for codec in CODECS + ("none",):
            for kind in (torch.float32, torch.bfloat16, torch.float64):
                parameters = [torch.empty(shape, dtype=kind, device="meta") for shape in ((64, 48), (65,), (8, 8, 3, 3))]
                session = session_of(parameters, codec, least_elements=0)
                for _ in range(3):
                    for used in (None, {0}):
                        bucket = Bucket(parameters, [torch.empty_like(parameter) for parameter in parameters])
                        value = session.push(bucket, used).wait()
                        assert value.device.type == "meta" and value.dtype == kind, codec
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def a_flat_gather_uses_the_name_that_this_pytorch_has():
    """From 2.13 on all_gather_into_tensor warns; before, all_gather_single does not exist; Gloo of 1.13 takes lists alone."""
    names = ("get_backend", "all_gather", "all_gather_into_tensor", "all_gather_single")
    before = {name: getattr(dist, name, None) for name in names}
    output, own = torch.empty(8, device="meta"), torch.empty(8 // dist.get_world_size(), device="meta")
    try:
        for backend, newer, wanted in (("nccl", True, "all_gather_single"), ("nccl", False, "all_gather_into_tensor"),
                                       ("gloo", True, "all_gather")):
            called = []
            dist.get_backend = lambda group: backend
            dist.all_gather = lambda *args, **options: called.append("all_gather")
            dist.all_gather_into_tensor = lambda *args, **options: called.append("all_gather_into_tensor")
            dist.all_gather_single = (lambda *args, **options: called.append("all_gather_single")) if newer else None
            _torch_versions.all_gather_flat(output, own, None)
            assert called == [wanted], f"{backend}: {called}, wanted {wanted}"
    finally:
        for name, function in before.items():
            if function is not None:
                setattr(dist, name, function)
            else:
                delattr(dist, name)


# -- what is applied -------------------------------------------------------------------------------------------------------


def ranks_hold_the_same_finite_gradients():
    for codec in CODECS:
        net, session = attached(codec)
        seen = models.train(net, 4)
        models.assert_same_everywhere(seen[-1])
        for tensor in seen[-1]:
            assert torch.isfinite(tensor).all(), codec
        assert "device" in session.describe()["summary"], session.describe()
        raw = sum(4 * parameter.numel() for parameter in net.parameters())
        assert 0 < session.last_step()["payload_bytes"] < 0.6 * raw, f"{codec}: {session.last_step()} of {raw}"
        assert session.last_step()["codec"] == codec


def library():
    """The path of libgradpress, or None, with the reason printed."""
    if importlib.util.find_spec("gradpress._native") is None:
        print("skipped: this package has no libgradpress to compare with")
        return None
    from gradpress import _native
    return _native.library._name


def means_are_those_of_the_host_codecs():
    path = library()
    if path is None:
        return
    size = dist.get_world_size()
    # A mean of bf16 is rounded to bf16 once more; the host codec alone does not do that.
    for codec, limit in (("acpsgd:4", 2e-4), ("powersgd:2", 2e-4), ("randomk:0.05", 1e-6), ("topk:0.05", 1e-6), ("efsign", 1e-6),
                         ("bf16", 2.0 ** -8)):
        for shape, seed in (((40, 60), 0), ((64, 33), 2**63 + 5)):
            parameters = [torch.zeros(1), torch.zeros(shape)]
            session = session_of(parameters, codec, seed=seed)
            host = HostCodec(path, codec, shape, size, seed=seed, tensor=1)
            for step in range(6):
                gradient = noise(shape, step) + torch.ones(shape).cumsum(1)
                _, ours = reduced(session, parameters, [torch.zeros(1), gradient])
                apart = models.relative(ours.reshape(-1), host.mean([one.reshape(-1) for one in everywhere(gradient)]))
                assert apart < limit, f"{codec}, {shape}, step {step}: {apart}"


def means_are_those_of_the_host_path():
    if library() is None:
        return
    import gradpress
    for codec, limit in (("acpsgd:4", 2e-4), ("powersgd:2", 2e-4), ("randomk:0.05", 1e-6), ("bf16", 2.0 ** -8)):
        host = models.wrapped()
        # Small tensors too: the host path leaves them raw, while a cast on a device takes all.
        of_host = gradpress.attach(host, codec=codec, least_elements=0)
        net, _ = attached(codec, least_elements=0)
        # Without updates: the same gradients for both, and residuals that grow.
        for step in range(6):
            for one in (host, net):
                one.zero_grad()
                models.backward(one, step)
            for index, (ours, theirs) in enumerate(zip(models.gradients(net), models.gradients(host))):
                apart = models.relative(ours, theirs)
                assert apart < limit, f"{codec}, step {step}, parameter {index}: {apart}"
        of_host.close()


def fp16_is_torchs_hook():
    if not _torch_versions.adds_float16(None, torch.device("cpu")):
        print("skipped: torch's hook does not run: this Gloo cannot add float16")
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    theirs = models.wrapped()
    theirs.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ours, _ = attached("fp16")
    models.assert_same_bits(models.train(ours, 3), models.train(theirs, 3))


def two_byte_gradients_are_added_in_float32_and_travel_in_two_bytes():
    size = dist.get_world_size()
    for kind, codec in ((torch.bfloat16, "none"), (torch.bfloat16, "bf16"), (torch.float16, "none"), (torch.float32, "bf16")):
        sent = torch.bfloat16 if codec == "bf16" else kind
        # One length that the ranks divide, one that they do not.
        for shapes in (((6, 32), (96,)), ((7, 31), (6,))):
            parameters = [torch.zeros(shape, dtype=kind) for shape in shapes]
            session = session_of(parameters, codec)
            gradients = [noise(shape, 3, kind) for shape in shapes]
            for gradient, mean in zip(gradients, reduced(session, parameters, gradients)):
                total = torch.zeros(gradient.shape)
                for other in everywhere(gradient.to(sent)):
                    total += other.float()
                assert torch.equal(mean, (total / size).to(sent).to(kind)), f"{codec}, {kind}"
                for other in everywhere(mean):
                    assert torch.equal(mean, other), f"{codec}, {kind}"
            elements = sum(math.prod(shape) for shape in shapes)
            wanted = 2 * size * math.ceil(elements / size)
            assert session.last_step()["payload_bytes"] == wanted, f"{codec}, {kind}: {session.last_step()}, wanted {wanted}"


def fp16_is_added_in_float32_where_the_group_cannot_add_float16():
    adds = _torch_versions.adds_float16
    try:
        _torch_versions.adds_float16 = lambda group, device: False
        parameters = [torch.zeros(33, 31)]
        session = session_of(parameters, "fp16")
    finally:
        _torch_versions.adds_float16 = adds
    line, = session.take_log()
    assert "float16" in line and session.take_log() == []
    gradient = noise((33, 31), 1)
    mean, = reduced(session, parameters, [gradient])
    total = sum(other.half().float() for other in everywhere(gradient))
    assert torch.equal(mean, (total / dist.get_world_size()).half().float())
    assert session.last_step()["payload_bytes"] == 2 * (33 * 31 + -(33 * 31) % dist.get_world_size())


def two_byte_gradients_are_compressed_when_that_saves_bytes():
    parameters = [torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)]
    # 8 of 4 bytes and more for 2: raw costs less.
    session = session_of(parameters, "topk:0.3")
    assert [one["codec"] for one in session.describe()["tensors"]] == ["none", "none"], session.describe()
    session = session_of(parameters, "topk:0.2", rules=[("p1", "none")])
    assert [one["codec"] for one in session.describe()["tensors"]] == ["topk:0.2", "none"], session.describe()
    gradients = [noise((64, 64), seed, torch.bfloat16) for seed in (1, 2)]
    means = reduced(session, parameters, gradients)
    assert all(mean.dtype == torch.bfloat16 for mean in means)
    kept = math.ceil(0.2 * 4096)
    assert session.last_step()["payload_bytes"] == 8 * kept + 2 * 4096 + 2 * (-4096 % dist.get_world_size()), session.last_step()


def float64_gradients_are_added_in_float64():
    parameters = [torch.zeros(40, 40, dtype=torch.float64), torch.zeros(40, 40, dtype=torch.float64)]
    session = session_of(parameters, "acpsgd:4", rules=[("p1", "none")])
    gradients = [noise((40, 40), seed, torch.float64) for seed in (1, 2)]
    means = reduced(session, parameters, gradients)
    wanted = sum(everywhere(gradients[1])) / dist.get_world_size()
    assert float((means[1] - wanted).abs().max()) < 1e-15
    assert torch.isfinite(means[0]).all() and means[0].dtype == torch.float64


def memory_formats_do_not_matter():
    """A gradient's elements are taken in the order of memory, by every codec and by residual()."""
    for codec in ("topk:1", "powersgd:8", "none"):
        parameter = torch.zeros(8, 32, 3, 3).to(memory_format=torch.channels_last)
        gradient = noise((8, 32, 3, 3), 1).to(memory_format=torch.channels_last)
        session = session_of([parameter], codec, least_elements=0)
        flat = torch.as_strided(gradient, (gradient.numel(),), (1,)).clone()
        bucket = Bucket([parameter], [flat])
        bucket._gradients = [torch.as_strided(bucket.buffer(), gradient.shape, gradient.stride())]
        session.push(bucket).wait()
        wanted = sum(everywhere(gradient)) / dist.get_world_size()
        assert float((bucket.gradients()[0] - wanted).abs().max()) < 1e-5, codec


def autocast_around_the_hook_changes_nothing():
    parameters = [torch.zeros(64, 64)]
    for codec in ("acpsgd:4", "powersgd:2"):
        seen = []
        for enabled in (False, True):
            session = session_of(parameters, codec)
            for step in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                    means = reduced(session, parameters, [noise((64, 64), step)])
            seen.append(means)
        models.assert_same_bits(seen[:1], seen[1:])


def zero_gradients_stay_zero():
    for codec in CODECS:
        net, _ = attached(codec)
        for step in range(3):
            net.zero_grad()
            models.backward(net, step, scale=0.0)
            for gradient in models.gradients(net):
                assert torch.equal(gradient, torch.zeros_like(gradient)), codec


def tiny_and_huge_gradients_keep_their_direction():
    """powersgd multiplies a gradient by a factor of its own size: squares must neither vanish nor overflow."""
    parameters = [torch.zeros(32, 32)]
    direction = torch.outer(torch.arange(1.0, 33), torch.arange(2.0, 34))
    for scale in (1e-30, 1e30):
        session = session_of(parameters, "powersgd:1", least_elements=0)
        for _ in range(3):
            mean, = reduced(session, parameters, [scale * direction])
        assert models.relative(mean / scale, direction) < 1e-4, scale


# -- what is kept ------------------------------------------------------------------------------------------------------------


def nothing_is_lost():
    """workers x applied + residuals = gradients, summed over steps and workers, through changes of the codec."""
    size = dist.get_world_size()
    for codec in FEEDBACK:
        plain = models.wrapped()
        net, session = attached(codec)
        balance = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in net.module.named_parameters()}
        for step in range(8):
            if step in (3, 6):
                session.set_codec("topk:0.01" if step == 3 else "none")
            for one in (plain, net):
                one.zero_grad()
                models.backward(one, step)
            for total, given, applied in zip(balance.values(), models.gradients(plain), models.gradients(net)):
                total += size * (given.double() - applied.double())
            if step == 5:
                assert any(residual.abs().max() > 0 for residual in residuals_of(session).values()), codec
                _assert_balanced(session, balance, codec)
        _assert_balanced(session, balance, codec)
        assert all(torch.equal(residual, torch.zeros_like(residual)) for residual in residuals_of(session).values()), codec


def _assert_balanced(session, balance, codec):
    for name, residual in residuals_of(session).items():
        # powersgd's residual is against what all applied: shares of all ranks add up.
        total = residual.double()
        dist.all_reduce(total)
        apart = float((balance[name].reshape(-1) - total).abs().max())
        assert apart < 1e-4, f"{codec}, {name}: {apart}"


def a_cast_with_feedback_loses_nothing_and_keeps_no_nan():
    size = dist.get_world_size()
    for codec in ("fp16", "bf16"):
        parameters = [torch.zeros(33, 31), torch.zeros(7)]
        session = session_of(parameters, codec, feedback=True)
        balance = [torch.zeros(parameter.shape, dtype=torch.float64) for parameter in parameters]
        for step in range(5):
            gradients = [noise(parameter.shape, step) for parameter in parameters]
            for total, given, applied in zip(balance, gradients, reduced(session, parameters, gradients)):
                total += sum(everywhere(given.double())) - size * applied.double()
        before = residuals_of(session)
        for total, residual in zip(balance, before.values()):
            assert residual.abs().max() > 0, codec
            apart = float((total.reshape(-1) - sum(everywhere(residual.double()))).abs().max())
            # fp16 adds in float16, as torch's hook does; what that rounds off nobody keeps.
            assert apart < (1e-5 if codec == "bf16" else 2e-2), f"{codec}: {apart}"
        gradients[0][3, 4] = float("nan") if dist.get_rank() == 0 else 1.0
        mean = reduced(session, parameters, gradients)[0]
        assert torch.isnan(mean[3, 4]) and int(torch.isnan(mean).sum()) == 1, codec
        after = residuals_of(session)
        assert torch.equal(before["p0"], after["p0"]) and not torch.equal(before["p1"], after["p1"]), codec


def nan_on_one_rank_is_nan_on_all_and_leaves_no_trace():
    for codec in FEEDBACK:
        net, session = attached(codec)
        models.train(net, 2, rate=0.0)
        before = residuals_of(session)
        net.zero_grad()
        models.backward(net, 2, scale=float("nan") if dist.get_rank() == 0 else 1.0)
        assert all(torch.isnan(gradient).all() for gradient in models.gradients(net)), codec
        after = residuals_of(session)
        for name, residual in before.items():
            assert torch.equal(residual, after[name]), f"{codec}: {name}"
        models.assert_same_everywhere(models.train(net, 2, first=3)[-1])


def one_nan_or_infinity_anywhere_is_found():
    """Also where the element itself is not sent."""
    for codec in FEEDBACK:
        for bad in (float("nan"), float("inf")):
            for at in (0, 1500, 4095):
                parameters = [torch.zeros(64, 64)]
                session = session_of(parameters, codec)
                gradient = noise((64, 64), at)
                if dist.get_rank() == dist.get_world_size() - 1:
                    gradient.view(-1)[at] = bad
                mean, = reduced(session, parameters, [gradient])
                assert torch.isnan(mean).all(), f"{codec}: {bad} at {at}"
                assert torch.equal(session.residual(0), torch.zeros(4096)), f"{codec}: {bad} at {at}"
                mean, = reduced(session, parameters, [noise((64, 64), 1)])
                assert torch.isfinite(mean).all(), f"{codec}: after {bad} at {at}"


def a_parameter_that_no_rank_uses_keeps_its_residual():
    """DDP drops what is delivered to it."""
    parameters = [torch.zeros(64, 64), torch.zeros(64, 64)]
    for codec in CODECS:
        session = session_of(parameters, codec, feedback=True)
        reduced(session, parameters, [noise((64, 64), 1), noise((64, 64), 2)], used={0, 1})
        before = residuals_of(session)
        reduced(session, parameters, [noise((64, 64), 1), torch.zeros(64, 64)], used={0})
        after = residuals_of(session)
        assert torch.equal(before["p1"], after["p1"]), codec
        assert not torch.equal(before["p0"], after["p0"]), codec
        # Used by one rank: DDP delivers to all.
        reduced(session, parameters, [noise((64, 64), 1), noise((64, 64), 2)], used={0, 1} if dist.get_rank() == 0 else {0})
        assert not torch.equal(after["p1"], session.residual(1)), codec


def residuals_can_be_read_scaled_and_added():
    parameters = [torch.zeros(64, 64), torch.zeros(10)]
    session = session_of(parameters, "topk:0.05")
    reduced(session, parameters, [noise((64, 64), 1), noise((10,), 2)])
    before = session.residual(0)
    assert before.shape == (4096,) and before.dtype == torch.float32 and before.abs().max() > 0
    session.scale_residuals(0.5)
    assert torch.equal(session.residual(0), 0.5 * before)
    session.add_residual(0, before.view(64, 64))
    assert torch.equal(session.residual(0), 1.5 * before)
    # The second one is too small to be compressed: it keeps none, and sends what it is given at once.
    assert torch.equal(session.residual(1), torch.zeros(10))
    session.add_residual(1, torch.ones(10))
    gradients = [noise((64, 64), 1), torch.zeros(10)]
    assert torch.equal(reduced(session, parameters, gradients)[1], torch.ones(10))
    assert torch.equal(session.residual(1), torch.zeros(10))
    refused(lambda: session.residual(2), "0 to 1", "2")
    refused(lambda: session.add_residual(0, torch.ones(3)), "p0", "4096", "3")


def a_checkpoint_goes_on_bit_for_bit():
    for codec in FEEDBACK:
        straight, session = attached(codec)
        models.train(straight, 3)
        weights = {name: tensor.clone() for name, tensor in straight.module.state_dict().items()}
        kept = session.checkpoint()
        wanted = models.train(straight, 2, first=3)
        again, other = attached(codec, {"seed": 9})
        again.module.load_state_dict(weights)
        other.restore(kept)
        assert other.checkpoint() == kept, codec
        models.assert_same_bits(models.train(again, 2, first=3), wanted)


def damaged_checkpoints_are_refused_and_change_nothing():
    parameters = [torch.zeros(64, 64), torch.zeros(10)]
    session = session_of(parameters, "acpsgd:4")
    reduced(session, parameters, [noise((64, 64), 1), noise((10,), 2)])
    good = session.checkpoint()
    reduced(session, parameters, [noise((64, 64), 3), noise((10,), 4)])
    now = session.checkpoint()
    for at in list(range(0, 400, 7)) + list(range(400, len(good), 999)) + [len(good) - 1]:
        flipped = bytearray(good)
        flipped[at] ^= 0x10
        refused(lambda: session.restore(bytes(flipped)), "gradpress")
        refused(lambda: session.restore(good[:at]), "gradpress")
    refused(lambda: session.restore(good + b"x"), "damaged")
    refused(lambda: session.restore(b"\x80\x04N."), "no checkpoint")
    # Well-formed, but of another model, codec or shape.
    saved = checkpoint.from_bytes(good)
    first = saved.tensors[0]
    for other, word in (
            (saved._replace(codec="topk:0.1"), "topk:0.1"), (saved._replace(tensors=saved.tensors[:1]), "parameters"),
            (saved._replace(tensors=[first._replace(name="q"), saved.tensors[1]]), "q"),
            (saved._replace(tensors=[first._replace(parity=7), saved.tensors[1]]), "p0"),
            (saved._replace(tensors=[first._replace(blocks={**first.blocks, "left": torch.zeros(3, 3)}), saved.tensors[1]]),
             "p0"),
            (saved._replace(tensors=[first._replace(blocks={**first.blocks, "residual": torch.zeros(5)}), saved.tensors[1]]),
             "p0")):
        refused(lambda: session.restore(checkpoint.to_bytes(other)), word)
    assert session.checkpoint() == now
    session.restore(good)
    assert session.checkpoint() == good


# -- codecs, names, layouts ----------------------------------------------------------------------------------------------------


def codecs_without_such_a_path_are_named():
    parameters = [torch.zeros(64, 64)]
    session = session_of(parameters, "topk:0.05")
    reduced(session, parameters, [noise((64, 64), 1)])
    kept = session.checkpoint()
    for codec in ("auto", "qsgd:4", "bogus", "topk", "topk:0", "topk:1.5", "topk:nan", "acpsgd:1.5", "acpsgd:0", "none:1", "", "topk:0.1:value=fp16"):
        assert not DeviceSession.can(codec), codec
        refused(lambda: session_of(parameters, codec), codec, "p0")
        refused(lambda: session.set_codec(codec), codec, "p0")
        refused(lambda: session_of(parameters, "none", rules=[("*", codec)]), codec, "p0")
    assert session.checkpoint() == kept
    for codec in CODECS + ("none", "topk:1e-3", "topk:1"):
        assert DeviceSession.can(codec), codec
    refused(lambda: session_of([torch.zeros(4, dtype=torch.int64)], "none"), "p0", "int64")


def rules_go_before_the_codec_and_small_tensors_stay_raw():
    named = [("layer[0].weight", torch.zeros(64, 64)), ("layer[0].bias", torch.zeros(64)), ("embed", torch.zeros(64, 64)),
             ("vector", torch.zeros(4096))]
    session = Guarded(None, named, {"codec": "acpsgd:4", "rules": [("embed*", "topk:0.1"), ("layer[0]?w*", "none")]})
    codecs = {one["name"]: one["codec"] for one in session.describe()["tensors"]}
    # [0] stands for itself; a tensor of one dimension has no matrix.
    assert codecs == {"layer[0].weight": "none", "layer[0].bias": "none", "embed": "topk:0.1", "vector": "none"}, codecs


def layouts_follow_the_buckets():
    first, second, third = (torch.zeros(64, 64) for _ in range(3))
    session = session_of([first, second, third], "none")
    gradients = {id(one): noise((64, 64), seed) for seed, one in enumerate((first, second, third))}
    for order in ([first, second, third], [third, first, second], [second], [first, second, third]):
        for parameter, mean in zip(order, reduced(session, order, [gradients[id(one)] for one in order])):
            wanted = sum(everywhere(gradients[id(parameter)])) / dist.get_world_size()
            assert float((mean - wanted).abs().max()) < 1e-6
    stranger = torch.zeros(64, 64)
    refused(lambda: session.push(Bucket([stranger], [stranger.clone()])), "attach", "[64, 64]")
    session.close()
    try:
        session.push(Bucket([first], [first.clone()]))
    except RuntimeError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("a closed session took a bucket")


def a_failed_collective_fails_the_future():
    parameters = [torch.zeros(64, 64)]
    session = session_of(parameters, "acpsgd:4")

    def fail(*args):
        raise RuntimeError("decode failed")

    session._decode = fail
    try:
        session.push(Bucket(parameters, [noise((64, 64), 1)])).wait()
    except RuntimeError as error:
        assert "decode failed" in str(error)
    else:
        raise AssertionError("the error was lost")


# -- bytes ----------------------------------------------------------------------------------------------------------------------


def place_of(shape, number=0, seed=0):
    return Place(specs.MatrixShape.of(shape), torch.device("cpu"), torch.float32, number, seed)


def payload(codec, x, step=0):
    made = families.make(families.parse(codec), place_of(x.shape), 0, 1)
    assert made.spec.text() == codec, made.spec
    return bytes(made.encode(x.reshape(-1), step, None, 2).payload.view(torch.uint8).tolist())


def payloads_are_those_of_the_wire_format():
    x = torch.tensor([[3.0, -0.0, -7.5, 0.25] + [1.0] * 33])
    assert payload("topk:0.05", x) == struct.pack("<2I2f", 0, 2, 3.0, -7.5)
    bits = sum(1 << index for index, value in enumerate(x.reshape(-1).tolist()) if math.copysign(1, value) < 0)
    assert payload("efsign", x) == struct.pack("<f", float(x.abs().mean())) + bits.to_bytes(8, "little")
    y = noise((12, 20), 1)
    acpsgd = families.make(families.parse("acpsgd:3"), place_of(y.shape), 0, 1)
    left = y @ acpsgd.factors()["right"].t()  # 12 x 3
    sent = acpsgd.encode(y.reshape(-1), 0, None, 2).payload
    assert models.relative(sent, left.t().reshape(-1)) < 1e-6  # column after column


def reference_word(key, index):
    mask = 0xFFFFFFFF
    x = (index ^ key) & mask
    x ^= x >> 16
    x = x * 0x21F0AAAD & mask
    x ^= x >> 15
    x = (x + (key >> 32)) & mask
    x = x * 0xD35A2D97 & mask
    return x ^ x >> 15


def random_words_are_those_of_the_wire_format():
    for seed, tensor, step in ((0, 0, 0), (7, 3, 11), (2**64 - 1, 900, 123456)):
        key = random_words.key(seed, tensor, step)
        indices = [0, 1, 2, 77, 2**31 - 1, 2**31, 2**32 - 1]
        words = random_words.words(key, torch.tensor(indices))
        assert words.tolist() == [reference_word(key, index) for index in indices]
        for elements, kept in ((1000, 50), (1001, 50), (7, 7), (5, 1), (99991, 1234)):
            drawn = random_words.Strata(elements, kept, torch.device("cpu")).draw(key).tolist()
            bounds = [j * elements // kept for j in range(kept + 1)]
            assert drawn == [bounds[j] + (reference_word(key, j) * (bounds[j + 1] - bounds[j]) >> 32) for j in range(kept)]
        factor = random_words.first_factor(key, (2, 3)).reshape(-1).tolist()
        for index, element in enumerate(factor):
            total = sum((reference_word(key, 12 * index + t) >> 8) * 2.0 ** -24 for t in range(12)) - 6.0
            assert element == struct.unpack("<f", struct.pack("<f", total))[0]


def random_words_are_those_of_the_host_codecs():
    if library() is None:
        return
    from gradpress import _native
    for shape, number, seed, step in (((40, 50), 0, 0, 0), ((33, 77), 5, 2**63 + 9, 17)):
        options = {"seed": seed, "tensor": number}
        elements = shape[0] * shape[1]
        randomk = _native.Codec("randomk:0.05", shape, options)
        kept = families.parse("randomk:0.05").kept(elements)
        out = torch.zeros(elements)
        randomk.decode(struct.pack(f"<{kept}f", *range(1, kept + 1)), step, 1.0, out.data_ptr(), elements)
        drawn = random_words.Strata(elements, kept, torch.device("cpu")).draw(random_words.key(seed, number, step))
        assert torch.equal(out.nonzero().reshape(-1), drawn)
        assert torch.equal(out[drawn], torch.arange(1.0, kept + 1))
        for codec in ("powersgd:3", "acpsgd:3"):
            extras = _native.Codec(codec, shape, options).extras()
            theirs = torch.frombuffer(bytearray(extras[-4 * 3 * shape[1]:]), dtype=torch.float32).view(3, shape[1])
            ours = families.make(families.parse(codec), place_of(shape, number, seed), 0, 1).factors()["right"]
            if codec == "powersgd:3":
                assert torch.equal(theirs, ours)
            else:  # the same basis, up to signs and rounding
                assert models.relative(ours.t() @ ours, theirs.t() @ theirs) < 1e-5


ANY_SIZE = [ranks_hold_the_same_finite_gradients, means_are_those_of_the_host_codecs, nothing_is_lost,
            one_nan_or_infinity_anywhere_is_found, two_byte_gradients_are_added_in_float32_and_travel_in_two_bytes,
            a_cast_with_feedback_loses_nothing_and_keeps_no_nan, a_parameter_that_no_rank_uses_keeps_its_residual]
workers.main(__name__, {
    1: [ranks_hold_the_same_finite_gradients],
    2: [the_mode_fails_on_host_reads, all_codecs_run_on_tensors_without_memory,
        a_flat_gather_uses_the_name_that_this_pytorch_has, *ANY_SIZE, means_are_those_of_the_host_path, fp16_is_torchs_hook,
        fp16_is_added_in_float32_where_the_group_cannot_add_float16,
        two_byte_gradients_are_compressed_when_that_saves_bytes, float64_gradients_are_added_in_float64,
        memory_formats_do_not_matter, autocast_around_the_hook_changes_nothing, zero_gradients_stay_zero,
        tiny_and_huge_gradients_keep_their_direction, nan_on_one_rank_is_nan_on_all_and_leaves_no_trace,
        residuals_can_be_read_scaled_and_added, a_checkpoint_goes_on_bit_for_bit,
        damaged_checkpoints_are_refused_and_change_nothing, codecs_without_such_a_path_are_named,
        rules_go_before_the_codec_and_small_tensors_stay_raw, layouts_follow_the_buckets, a_failed_collective_fails_the_future,
        payloads_are_those_of_the_wire_format, random_words_are_those_of_the_wire_format,
        random_words_are_those_of_the_host_codecs],
    3: ANY_SIZE})
