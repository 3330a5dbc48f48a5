"""What DDP offers, with the hook in place."""
import contextlib
import json

import gradpress
import models
import torch
import torch.distributed as dist
import workers
from torch.nn.parallel import DistributedDataParallel as DDP

CODEC = "acpsgd:2"


@contextlib.contextmanager
def attached(net, codec=CODEC, **options):
    state = gradpress.attach(net, codec=codec, **options)
    yield state
    state.close()


def total(tensors):
    return sum(float(tensor.double().sum()) for tensor in tensors)


def summed(state, handed):
    """Over all ranks: what residuals keep, and what was handed over."""
    mine = torch.tensor([total(state._residuals()), handed], dtype=torch.float64)
    dist.all_reduce(mine)
    return mine


def accumulated_gradients_are_sent_once():
    plain, ours = models.wrapped(), models.wrapped()
    with attached(ours, rules=[("*", "none")]) as state:
        for net in (plain, ours):
            with net.no_sync():
                models.backward(net, 0)
                models.backward(net, 1)
            models.backward(net, 2)
        for x, y in zip(models.gradients(ours), models.gradients(plain)):
            assert models.relative(x, y) < 1e-6
        assert state.step == 1


def bucket_views_static_graphs_and_rebuilt_buckets_work():
    reference = None
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        net = models.wrapped(**options)
        with attached(net):
            seen = models.train(net, 4)
            models.assert_same_everywhere(seen[-1])
            if reference is None:
                reference = seen
            for a, b in zip(seen, reference):
                for x, y in zip(a, b):
                    assert models.relative(x, y) < 1e-5, options


class Branches(torch.nn.Module):
    """Uses one of two layers, another on every rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.last = torch.nn.Linear(64, 8)

    def forward(self, inputs, which):
        return self.last((self.first if which == 0 else self.second)(inputs))


def unused_parameters_count_as_zero():
    plain = DDP(Branches(), find_unused_parameters=True)
    ours = DDP(Branches(), find_unused_parameters=True)
    with attached(ours, rules=[("*", "none")]):
        for step in range(3):
            inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(step))
            for net in (plain, ours):
                net.zero_grad()
                net(inputs, (dist.get_rank() + step) % 2).sum().backward()
            for x, y in zip(models.gradients(ours), models.gradients(plain)):
                assert models.relative(x, y) < 1e-6


def ranks_may_run_out_of_inputs():
    net = models.wrapped()
    with attached(net) as state:
        with net.join():
            for step in range(2 + 2 * dist.get_rank()):
                net.zero_grad()
                models.backward(net, step)
        assert state.step == 2 + 2 * (dist.get_world_size() - 1), state.step


class Scaler:
    """GradScaler's protocol without CUDA: scale, unscale, skip, update."""

    def __init__(self):
        self.value, self.skipped = 1024.0, 0

    def get_scale(self):
        return self.value

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for gradient in gradients:
            gradient.div_(self.value)
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            optimizer.step()
            return gradients
        self.skipped += 1
        self.value /= 2
        return None


def a_skipped_step_leaves_residuals_and_a_new_scale_scales_them():
    net = models.wrapped()
    with attached(net) as state:
        scaler = Scaler()
        state.watch_scaler(scaler)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        models.backward(net, 0, scaler.get_scale())
        scaler.step(optimizer)
        before = list(state._residuals())
        optimizer.zero_grad()
        # One rank alone overflows.
        models.backward(net, 1, float("inf") if dist.get_rank() == 0 else scaler.get_scale())
        assert scaler.step(optimizer) is None, "an overflow anywhere must reach every rank"
        assert not state.log()["gradpress/finite"]
        for (name, _), x, y in zip(state._parameters, state._residuals(), before):
            # To rounding: what was added to it is subtracted again.
            assert models.relative(x, y) < 1e-5, f"{name}: {models.relative(x, y)} from what it was"
        before = list(state._residuals())
        state._follow_scale(scaler.get_scale())
        for x, y in zip(state._residuals(), before):
            assert models.relative(x, 0.5 * y) < 1e-6
        optimizer.zero_grad()
        models.backward(net, 2, scaler.get_scale())
        assert scaler.step(optimizer) is not None
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        models.assert_same_everywhere(models.gradients(net))


def several_models_and_sub_groups_live_side_by_side():
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    first, second = models.wrapped(1), models.wrapped(2)
    with attached(first), attached(second, codec="efsign"):
        models.backward(first, 0)
        models.backward(second, 0)
        models.assert_same_everywhere(models.gradients(first))
        models.assert_same_everywhere(models.gradients(second))
        if dist.get_rank() < 2:
            third = DDP(models.model(3), process_group=pairs[0])
            with attached(third) as state:
                models.backward(third, 0)
                assert "acpsgd" in state.summary()
    dist.barrier()


def two_byte_parameters_are_summed_in_float32():
    # 1.13's DDP itself refuses bf16 on Gloo, when it is made: it broadcasts the parameters.
    net = models.model(seed=dist.get_rank(), kind=torch.bfloat16)
    gradpress.broadcast_parameters(net)
    optimizer = gradpress.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(),
                                               codec=CODEC, rules=[("7.*", "none")])
    models.assert_same_everywhere([parameter.detach().float() for parameter in net.parameters()])
    models.backward(net, 0)
    own = net[7].weight.grad.float()
    optimizer.synchronize()
    seen = models.gradients(net)
    assert all(tensor.dtype == torch.bfloat16 and torch.isfinite(tensor).all() for tensor in seen)
    models.assert_same_everywhere([tensor.float() for tensor in seen])
    dist.all_reduce(own)
    # Rounded once, after the mean.
    assert torch.equal((own / dist.get_world_size()).bfloat16(), net[7].weight.grad)


def codecs_change_by_schedule_rule_and_call_and_nothing_is_lost():
    net = models.wrapped()
    state = gradpress.attach(net, codec={0: "none", 2: "topk:0.05", 4: "acpsgd:2"}, rules=[("7.*", "none")])
    plain = models.wrapped()
    applied, handed = 0.0, 0.0
    for step in range(6):
        for one in (net, plain):
            one.zero_grad()
        models.backward(net, step)
        with plain.no_sync():
            models.backward(plain, step)
        applied += total(models.gradients(net))
        handed += total(models.gradients(plain))
        want = ["none", "none", "topk:0.05", "topk:0.05", "acpsgd:2", "acpsgd:2"][step]
        assert state.codec == want, (step, state.codec)
    residuals, everything = summed(state, handed).tolist()
    assert abs(dist.get_world_size() * applied + residuals - everything) < 1e-3 * (1 + abs(everything))
    state._schedule = None
    state.set_codec("efsign")
    net.zero_grad()
    models.backward(net, 6)
    models.assert_same_everywhere(models.gradients(net))
    state.close()


def the_hook_registers_as_any_other():
    net = models.wrapped()
    state = gradpress.State(codec=CODEC)
    net.register_comm_hook(state, gradpress.hook)
    seen = models.train(net, 4)
    models.assert_same_everywhere(seen[-1])
    assert "acpsgd" in state.summary()
    state.close()


def an_optimizer_synchronises_without_ddp():
    plain, ours = models.wrapped(), models.model()
    gradpress.broadcast_parameters(ours)
    optimizer = gradpress.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters(),
                                               codec=CODEC, rules=[("*", "none")])
    wanted = models.train(plain, 3)
    for step in range(3):
        optimizer.zero_grad()
        models.backward(ours, step)
        optimizer.synchronize()
        for x, y in zip(models.gradients(ours), wanted[step]):
            assert models.relative(x, y) < 1e-5
        optimizer._optimizer.step()


def a_trace_is_written_for_the_planner():
    net = models.wrapped()
    file = workers.folder() / "trace.json"
    with attached(net) as state:
        state.record_trace(str(file), steps=2)
        models.train(net, 3)
    dist.barrier()
    trace = json.loads(file.read_text())
    assert trace["format"] == "gradpress-trace-1"
    assert {tensor["name"] for tensor in trace["tensors"]} == {name for name, _ in net.module.named_parameters()}
    assert trace["tensors"][0]["name"].startswith("7."), "backward begins at the last layer"
    assert all(tensor["ready_gap_us"] >= 0 for tensor in trace["tensors"])


def wrong_arguments_are_told():
    for wrong, words in (({"codec": "tpok:0.1"}, "tpok"), ({"codec": CODEC, "bukket_bytes": 1}, "bukket_bytes")):
        try:
            gradpress.attach(models.wrapped(), **wrong)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{wrong} was accepted")
    try:
        gradpress.attach(models.model())
    except TypeError as error:
        assert "DistributedDataParallel" in str(error)
    else:
        raise AssertionError("a model without DDP was accepted")


def the_profiler_sees_the_hooks_thread():
    net = models.wrapped()
    with attached(net):
        models.backward(net, 0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            models.backward(net, 1)
        names = {event.key for event in profile.key_averages()}
        assert {"gradpress::bucket", "gradpress::wait"} <= names, sorted(names)


workers.main(__name__, {
    2: [accumulated_gradients_are_sent_once, bucket_views_static_graphs_and_rebuilt_buckets_work,
        unused_parameters_count_as_zero, ranks_may_run_out_of_inputs,
        a_skipped_step_leaves_residuals_and_a_new_scale_scales_them, two_byte_parameters_are_summed_in_float32,
        the_hook_registers_as_any_other, an_optimizer_synchronises_without_ddp, a_trace_is_written_for_the_planner,
        wrong_arguments_are_told, the_profiler_sees_the_hooks_thread],
    3: [codecs_change_by_schedule_rule_and_call_and_nothing_is_lost, several_models_and_sub_groups_live_side_by_side],
})
