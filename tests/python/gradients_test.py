"""The gradients that the hook leaves, beside DDP's own and those of torch's hooks."""
import inspect

import gradpress
import models
import numpy as np
import torch
import torch.distributed as dist
import workers
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


def none_is_bit_equal_to_ddp_without_a_hook():
    settings = [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}]
    if "batched_grad_copy" in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters:
        settings += [{"batched_grad_copy": True}, {"batched_grad_copy": True, "gradient_as_bucket_view": True}]
    for options in settings:
        for kept in (lambda step: True, lambda step: False, lambda step: step % 2 == 0):
            plain, ours = models.wrapped(**options), models.wrapped(**options)
            gradpress.attach(ours, codec="none")
            models.assert_same_bits(*(models.train(net, 4, kept=kept) for net in (ours, plain)))


def every_codec_leaves_the_same_bits_on_every_rank():
    for codec in ("acpsgd:4", "powersgd:2", "topk:0.05", "efsign", "fp16", "dgc:0.05", "qsgd:4"):
        net = models.wrapped()
        state = gradpress.attach(net, codec=codec)
        seen = models.train(net, 3)
        models.assert_same_everywhere(seen[-1])
        for tensor in seen[-1]:
            assert torch.isfinite(tensor).all(), codec
        state.close()


def raw_tensors_in_an_engine_are_near_the_mean():
    plain, ours = models.wrapped(), models.wrapped()
    state = gradpress.attach(ours, codec="acpsgd:4", rules=[("*", "none")])
    for a, b in zip(models.train(ours, 3), models.train(plain, 3)):
        for x, y in zip(a, b):
            assert models.relative(x, y) < 1e-6
    state.close()


def compression_sends_fewer_bytes_and_says_how_many():
    net = models.wrapped()
    state = gradpress.attach(net, codec="acpsgd:4")
    models.train(net, 3)
    log = state.log()
    assert log["gradpress/step"] == 3
    assert log["gradpress/sent_bytes"] == log["gradpress/promised_bytes"], log
    assert 0 < log["gradpress/sent_bytes"] < 0.2 * log["gradpress/raw_gradient_bytes"], log
    assert "acpsgd:4" in state.summary()
    state.close()


def fp16_is_as_near_to_the_mean_as_torchs_hook():
    if not models.group_sends(torch.float16):
        print("not compared: torch's own fp16 hook does not work there", flush=True)
        return
    plain, theirs, ours = models.wrapped(), models.wrapped(), models.wrapped()
    theirs.register_comm_hook(None, default_hooks.fp16_compress_hook)
    state = gradpress.attach(ours, codec="fp16")
    for net in (plain, theirs, ours):
        models.backward(net, 0)
    workers_count = dist.get_world_size()
    for exact, torchs, mine in zip(*map(models.gradients, (plain, theirs, ours))):
        # A half-precision ulp of the largest element; elements of one tensor share its scale.
        ulp = float(exact.abs().max()) * 2.0 ** -10
        assert float((mine - torchs).abs().max()) <= workers_count * ulp
        assert float((mine - exact).norm()) <= 1.05 * float((torchs - exact).norm()) + 1e-12
    state.close()


def mix64(z):
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def first_factor(tensor, columns, rank):
    """The right factor that powersgd starts from, as docs/wire_format.md defines it: columns x rank."""
    key = 0
    for part in (0, tensor, 0, 0, 0):  # seed, tensor, step, site, shard
        key = mix64(key ^ part)
    low, high = key % 2**32, key >> 32
    x = np.arange(12 * columns * rank, dtype=np.uint32) ^ np.uint32(low)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x21F0AAAD)
    x ^= x >> np.uint32(15)
    x += np.uint32(high)
    x *= np.uint32(0xD35A2D97)
    x ^= x >> np.uint32(15)
    sums = (x >> np.uint32(8)).astype(np.float64).reshape(-1, 12).sum(axis=1)
    return torch.tensor((sums * 2.0 ** -24 - 6.0).astype(np.float32)).view(rank, columns).t()


def powersgd_gives_the_gradients_of_torchs_hook():
    rank, start, steps = 2, 2, 20
    # In one bucket: torch's hook issues collectives from callbacks, which Gloo does not survive with several.
    ours, theirs = models.wrapped(cap_mb=100), models.wrapped(cap_mb=100)
    # Torch compresses what shrinks by that factor: here every matrix, and no vector.
    state = gradpress.attach(ours, codec=f"powersgd:{rank}", start=start, least_elements=1)
    torchs = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=start,
                                         min_compression_rate=1.0)
    theirs.register_comm_hook(torchs, powerSGD_hook.powerSGD_hook)
    models.assert_same_bits(models.train(ours, start), models.train(theirs, start))
    # Both start from the same factors: ours, in the order in which torch's bucket has the matrices.
    named = list(ours.module.named_parameters())
    matrices = [(i, tensor) for i, (_, tensor) in enumerate(reversed(named)) if tensor.dim() > 1]
    torchs.p_memory_dict[0] = torch.empty(sum(tensor.shape[0] for _, tensor in matrices) * rank)
    torchs.q_memory_dict[0] = torch.cat([
        first_factor(i, tensor[0].numel(), rank).reshape(-1) for i, tensor in matrices])
    # Without updates both hooks get the same inputs to the bit. With them the nets drift apart by rounding, and what is
    # between them grows with every step, whatever the hooks do. So it does, more slowly, through the factors: the more the
    # less one batch's gradients have to do with the next one's, and by how much depends on torch's BLAS (docs/pytorch.md).
    gaps = []
    for a, b in zip(*(models.train(net, steps, start, 0.0, batches=2) for net in (ours, theirs))):
        gaps.append(models.relative(*(torch.cat([tensor.reshape(-1) for tensor in one]) for one in (a, b))))
    assert max(gaps) < 1e-4, gaps
    print(f"powersgd beside torch's hook: at most {max(gaps):.1e} apart over {steps} steps", flush=True)
    state.close()


def zero_and_constant_gradients_never_give_nan():
    for codec in ("powersgd:4", "acpsgd:4", "efsign", "topk:0.01", "fp16"):
        net = models.wrapped()
        state = gradpress.attach(net, codec=codec)
        for factor in (0.0, 0.0, 1.0):
            net.zero_grad()
            (factor * sum(parameter.sum() for parameter in net.parameters())
             + 0.0 * net(models.data(0)[0]).sum()).backward()
            for tensor in models.gradients(net):
                assert torch.isfinite(tensor).all(), f"{codec}, gradients of {factor}"
        state.close()


workers.main(__name__, {
    2: [none_is_bit_equal_to_ddp_without_a_hook, every_codec_leaves_the_same_bits_on_every_rank,
        powersgd_gives_the_gradients_of_torchs_hook, compression_sends_fewer_bytes_and_says_how_many,
        fp16_is_as_near_to_the_mean_as_torchs_hook,
        zero_and_constant_gradients_never_give_nan],
    3: [none_is_bit_equal_to_ddp_without_a_hook, every_codec_leaves_the_same_bits_on_every_rank,
        raw_tensors_in_an_engine_are_near_the_mean],
})
