"""The gradients that the hook leaves, beside DDP's own and those of torch's hooks."""
import gradpress
import models
import torch
import torch.distributed as dist
import workers
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def none_is_bit_equal_to_ddp_without_a_hook():
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        plain = models.wrapped(**options)
        ours = models.wrapped(**options)
        gradpress.attach(ours, codec="none")
        models.assert_same_bits(models.train(ours, 4), models.train(plain, 4))


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
        compression_sends_fewer_bytes_and_says_how_many, fp16_is_as_near_to_the_mean_as_torchs_hook,
        zero_and_constant_gradients_never_give_nan],
    3: [none_is_bit_equal_to_ddp_without_a_hook, every_codec_leaves_the_same_bits_on_every_rank,
        raw_tensors_in_an_engine_are_near_the_mean],
})
