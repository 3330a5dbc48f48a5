"""The path by ATen's operators, which tensors of a device take, forced on tensors in host memory."""
import contextlib
import os

import gradpress
import models
import torch
import torch.distributed as dist
import workers

CODECS = ("acpsgd:4", "powersgd:2", "topk:0.05", "randomk:0.05", "efsign", "fp16", "bf16")


@contextlib.contextmanager
def on_device():
    os.environ["GRADPRESS_DEVICE_PATH"] = "aten"
    try:
        yield
    finally:
        del os.environ["GRADPRESS_DEVICE_PATH"]


def attached(codec, **options):
    net = models.wrapped(**options)
    with on_device():
        return net, gradpress.attach(net, codec=codec)


def ranks_hold_the_same_finite_gradients():
    for codec in CODECS:
        net, state = attached(codec)
        seen = models.train(net, 4)
        models.assert_same_everywhere(seen[-1])
        for tensor in seen[-1]:
            assert torch.isfinite(tensor).all(), codec
        assert "device" in state.summary(), state.summary()
        assert 0 < state.log()["gradpress/payload_bytes"] < 0.6 * sum(4 * p.numel() for p in net.parameters())


def means_are_those_of_the_host_codecs():
    # On the host, bf16 sums are rounded to bf16 once more.
    for codec, limit in (("acpsgd:4", 2e-4), ("powersgd:2", 2e-4), ("randomk:0.05", 1e-6), ("bf16", 2.0 ** -8)):
        host = models.wrapped()
        of_host = gradpress.attach(host, codec=codec)
        net, _ = attached(codec)
        # Without updates: the same gradients for both, and residuals that grow.
        for step in range(6):
            for one in (host, net):
                one.zero_grad()
                models.backward(one, step)
            for index, (ours, theirs) in enumerate(zip(models.gradients(net), models.gradients(host))):
                apart = models.relative(ours, theirs)
                assert apart < limit, f"{codec}, step {step}, parameter {index}: {apart}"
        of_host.close()


def a_cast_with_feedback_keeps_what_it_rounds_off_and_no_nan():
    for codec in ("fp16", "bf16"):
        net = models.wrapped()
        with on_device():
            state = gradpress.attach(net, codec=codec, feedback=True)
        models.train(net, 2, rate=0.0)
        before = state.state_dict()["residuals"]
        assert any(residual.abs().max() > 0 for residual in before.values()), codec
        models.backward(net, 2, scale=float("nan") if dist.get_rank() == 0 else 1.0)
        after = state.state_dict()["residuals"]
        for name, residual in before.items():
            assert torch.equal(residual, after[name]), f"{codec}: {name}"


def fp16_is_torchs_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    theirs = models.wrapped()
    theirs.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ours, _ = attached("fp16")
    models.assert_same_bits(models.train(ours, 3), models.train(theirs, 3))


def nothing_is_lost():
    """workers x applied + residuals = gradients, summed over steps and workers, through a change of codec."""
    size = dist.get_world_size()
    for codec in ("acpsgd:4", "powersgd:2", "topk:0.05", "randomk:0.05", "efsign"):
        plain = models.wrapped()
        net, state = attached(codec)
        balance = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in net.parameters()]
        for step in range(6):
            if step == 3:
                state.set_codec("topk:0.01")
            for one in (plain, net):
                one.zero_grad()
                models.backward(one, step)
            for total, given, applied in zip(balance, models.gradients(plain), models.gradients(net)):
                total += size * (given.double() - applied.double())
        residuals = state.state_dict()["residuals"]
        assert residuals, codec
        for (name, _), total in zip(net.module.named_parameters(), balance):
            residual = residuals.get(name, torch.zeros(total.shape)).double().reshape(total.shape).clone()
            # powersgd's residual is against what all applied: shares of all ranks add up.
            dist.all_reduce(residual)
            apart = float((total - residual).abs().max())
            assert apart < 1e-4, f"{codec}, {name}: {apart}"


def nan_on_one_rank_is_nan_on_all_and_leaves_no_trace():
    for codec in ("acpsgd:4", "powersgd:2", "topk:0.05", "randomk:0.05", "efsign"):
        net, state = attached(codec)
        models.train(net, 2, rate=0.0)
        before = state.state_dict()["residuals"]
        net.zero_grad()
        models.backward(net, 2, scale=float("nan") if dist.get_rank() == 0 else 1.0)
        assert all(torch.isnan(gradient).all() for gradient in models.gradients(net)), codec
        after = state.state_dict()["residuals"]
        assert before.keys() == after.keys(), codec
        for name, residual in before.items():
            assert torch.equal(residual, after[name]), f"{codec}: {name}"
        models.assert_same_everywhere(models.train(net, 2, first=3)[-1])


def zero_gradients_stay_zero():
    for codec in CODECS:
        net, _ = attached(codec)
        for step in range(3):
            net.zero_grad()
            models.backward(net, step, scale=0.0)
            for gradient in models.gradients(net):
                assert torch.equal(gradient, torch.zeros_like(gradient)), codec


def a_checkpoint_goes_on_bit_for_bit():
    for codec in ("acpsgd:4", "powersgd:2", "topk:0.05", "randomk:0.05"):
        straight, state = attached(codec)
        models.train(straight, 3)
        weights = {name: tensor.clone() for name, tensor in straight.module.state_dict().items()}
        kept = state.state_dict()
        wanted = models.train(straight, 2, first=3)
        again, other = attached(codec, seed=9)
        again.module.load_state_dict(weights)
        other.load_state_dict(kept)
        models.assert_same_bits(models.train(again, 2, first=3), wanted)


def codecs_without_such_a_path_are_named():
    with on_device():
        for codec in ("auto", "qsgd:4"):
            try:
                gradpress.attach(models.wrapped(), codec=codec)
            except ValueError as error:
                assert codec in str(error) and "acpsgd" in str(error), error
            else:
                raise AssertionError(f"{codec} was taken")


workers.main(__name__, {
    2: [ranks_hold_the_same_finite_gradients, means_are_those_of_the_host_codecs, fp16_is_torchs_hook,
        a_cast_with_feedback_keeps_what_it_rounds_off_and_no_nan,
        nothing_is_lost, nan_on_one_rank_is_nan_on_all_and_leaves_no_trace, zero_gradients_stay_zero,
        a_checkpoint_goes_on_bit_for_bit, codecs_without_such_a_path_are_named],
    3: [ranks_hold_the_same_finite_gradients, nothing_is_lost]})
