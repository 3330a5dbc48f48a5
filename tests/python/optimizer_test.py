"""Data parallel without DDP."""
import expecting
import gradpress
import models
import torch
import torch.distributed as dist
import workers

CODEC = "acpsgd:2"


def wrapped(net, codec=CODEC, rate=0.1, **options):
    return gradpress.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=rate), net.named_parameters(), codec=codec,
                                          **options)


def gradients_are_those_of_ddp():
    plain, ours = models.wrapped(), models.model()
    gradpress.broadcast_parameters(ours)
    optimizer = wrapped(ours, rules=[("*", "none")])
    wanted = models.train(plain, 3)
    for step in range(3):
        optimizer.zero_grad()
        models.backward(ours, step)
        optimizer.synchronize()
        for x, y in zip(models.gradients(ours), wanted[step]):
            assert models.relative(x, y) < 1e-5
        optimizer.step()
    for x, y in zip(ours.parameters(), plain.module.parameters()):
        assert torch.allclose(x, y, atol=1e-5)
    optimizer.close()


def clipped_gradients_are_applied_clipped():
    net = models.model()
    optimizer = wrapped(net, rate=1.0)
    for step in range(3):
        before = [parameter.detach().clone() for parameter in net.parameters()]
        optimizer.zero_grad()
        models.backward(net, step, scale=100.0)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        moved = torch.cat([(x - y).reshape(-1) for x, y in zip(net.parameters(), before)]).norm()
        assert 0 < float(moved) < 0.0101, float(moved)
    assert optimizer.log()["gradpress/step"] == 3
    optimizer.close()


def a_backward_too_many_is_told():
    net = models.model()
    optimizer = wrapped(net)
    models.backward(net, 0)
    with expecting.error(RuntimeError, "backward_passes_per_step"):
        models.backward(net, 1)
    optimizer.close()


def accumulated_passes_are_sent_once():
    plain, ours = models.wrapped(), models.model()
    optimizer = wrapped(ours, rules=[("*", "none")], backward_passes_per_step=3)
    with plain.no_sync():
        models.backward(plain, 0)
        models.backward(plain, 1)
    models.backward(plain, 2)
    for step in range(3):
        models.backward(ours, step)
    optimizer.synchronize()
    for x, y in zip(models.gradients(ours), models.gradients(plain)):
        assert models.relative(x, y) < 1e-5
    optimizer.step()
    assert optimizer.log()["gradpress/step"] == 1
    optimizer.close()


def it_is_an_optimizer():
    net = models.model()
    optimizer = wrapped(net)
    assert isinstance(optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(2):
        optimizer.zero_grad()
        models.backward(net, step)
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    kept, residuals = optimizer.compression_state_dict(), optimizer.residuals()
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.025
    text = optimizer.summary()
    assert CODEC in text and "3.weight" in text, text
    assert optimizer.log()["gradpress/codec"] == CODEC
    optimizer.close()
    again = wrapped(net)
    again.load_compression_state_dict(kept)
    for name, residual in again.residuals().items():
        assert torch.equal(residual, residuals[name]), name
    with expecting.error(ValueError, "add the group"):
        again.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with expecting.error(RuntimeError, "zero_grad"):
        models.backward(net, 3)
        again.zero_grad()
    again.step()
    again.close()
    with expecting.error(ValueError, "group 0"):
        gradpress.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), [("0.bias", net[0].bias)])
    with expecting.error(TypeError, "Optimizer"):
        gradpress.DistributedOptimizer(net, net.named_parameters())


def two_byte_parameters_are_summed_in_float32():
    # 1.13's DDP itself refuses bf16 on Gloo, when it is made: it broadcasts the parameters.
    net = models.model(seed=dist.get_rank(), kind=torch.bfloat16)
    gradpress.broadcast_parameters(net)
    optimizer = wrapped(net, rules=[("7.*", "none")])
    models.assert_same_everywhere([parameter.detach().float() for parameter in net.parameters()])
    models.backward(net, 0)
    own = net[7].weight.grad.float()
    optimizer.synchronize()
    seen = models.gradients(net)
    assert all(tensor.dtype == torch.bfloat16 and torch.isfinite(tensor).all() for tensor in seen)
    models.assert_same_everywhere([tensor.float() for tensor in seen])
    dist.all_reduce(own)
    # Rounded once, after the sum.
    size = dist.get_world_size()
    assert torch.equal((own / size).bfloat16(), net[7].weight.grad) or torch.equal(
        own.bfloat16() / size, net[7].weight.grad), "bf16 sums are formed in float32 and rounded once"
    optimizer.close()
    raw = models.model(kind=torch.bfloat16)
    optimizer = wrapped(raw, codec="none")
    models.backward(raw, 0)
    optimizer.synchronize()
    log = optimizer.log()
    sent, ring = log["gradpress/sent_bytes"], 2 * (size - 1) / size * log["gradpress/raw_gradient_bytes"]
    assert 0 < sent <= 1.01 * ring + 64, f"{sent} bytes sent, a raw ring of two-byte elements sends {ring}"
    optimizer.close()


workers.main(__name__, {2: [
    gradients_are_those_of_ddp, clipped_gradients_are_applied_clipped, a_backward_too_many_is_told,
    accumulated_passes_are_sent_once, it_is_an_optimizer, two_byte_parameters_are_summed_in_float32]})
