"""What DDP offers, with the hook in place."""
import contextlib
import json

import expecting
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
    mine = torch.tensor([total(state.residuals().values()), handed], dtype=torch.float64)
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


def what_nobody_uses_keeps_its_residual():
    """DDP drops the gradient of a parameter that no rank used; what was delivered to it must come back."""
    for codec in ("topk:0.05", "efsign", "acpsgd:2"):
        net = DDP(Branches(), find_unused_parameters=True)
        with attached(net, codec=codec) as state:
            applied = handed = 0.0
            for step in range(6):
                net.zero_grad(set_to_none=True)
                inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
                # The second branch in two steps of six alone, then on one rank.
                which = [0, 1, 0, 0, dist.get_rank(), 0][step]
                net(inputs, which).square().sum().backward()
                applied += total(p.grad for p in net.parameters() if p.grad is not None)
                alone = Branches()
                alone(inputs, which).square().sum().backward()
                handed += total(p.grad for p in alone.parameters() if p.grad is not None)
            residuals, everything = summed(state, handed).tolist()
            gap = abs(dist.get_world_size() * applied + residuals - everything)
            assert gap < 1e-4 * (1 + abs(everything)), f"{codec}: {gap} of {everything} is lost"


class Words(torch.nn.Module):
    """A sparse embedding, a dense one, a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.sparse, self.dense = torch.nn.Embedding(50, 64, sparse=True), torch.nn.Embedding(50, 64)
        self.last = torch.nn.Linear(64, 50)

    def forward(self, words):
        return self.last(self.sparse(words) + self.dense(words))


def sparse_gradients_travel_as_ddp_sends_them():
    for codec, rules in (("efsign", [("*", "none")]), ("topk:0.05", []), ("none", [])):
        plain, ours = DDP(Words()), DDP(Words())
        with attached(ours, codec=codec, rules=rules) as state:
            for step in range(3):
                words = torch.randint(0, 50, (6,), generator=torch.Generator().manual_seed(9 * step + dist.get_rank()))
                for net in (plain, ours):
                    net.zero_grad()
                    net(words).square().sum().backward()
                gradients = [net.module.sparse.weight.grad for net in (plain, ours)]
                assert all(gradient.is_sparse for gradient in gradients)
                assert torch.equal(*(gradient.to_dense() for gradient in gradients)), codec
                models.assert_same_everywhere([ours.module.dense.weight.grad])
            assert state.step == 3


def other_types_of_gradients_are_taken():
    for kind, limit in ((torch.float64, 1e-6), (torch.float16, 2e-3)):
        if kind == torch.float16 and not (half_works() and models.group_sends(kind)):
            print("float16 is left out: DDP itself cannot", flush=True)
            continue
        plain, ours = models.wrapped(kind=kind), models.wrapped(kind=kind)
        with attached(ours, codec="efsign", rules=[("*", "none")]):
            for net in (plain, ours):
                models.backward(net, 0)
            for x, y in zip(models.gradients(ours), models.gradients(plain)):
                assert x.dtype == kind and models.relative(x.double(), y.double()) < limit, kind


def half_works():
    try:
        models.model(kind=torch.float16)(torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    except RuntimeError as error:
        print(f"this torch cannot compute float16 on the CPU: {error}", flush=True)
        return False
    return True


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
        before = list(state.residuals().values())
        optimizer.zero_grad()
        # One rank alone overflows.
        models.backward(net, 1, float("inf") if dist.get_rank() == 0 else scaler.get_scale())
        assert scaler.step(optimizer) is None, "an overflow anywhere must reach every rank"
        assert not state.log()["gradpress/finite"]
        for (name, x), y in zip(state.residuals().items(), before):
            # To rounding: what was added to it is subtracted again.
            assert models.relative(x, y) < 1e-5, f"{name}: {models.relative(x, y)} from what it was"
        before = list(state.residuals().values())
        state._follow_scaler()
        for x, y in zip(state.residuals().values(), before):
            assert models.relative(x, 0.5 * y) < 1e-6
        optimizer.zero_grad()
        models.backward(net, 2, scaler.get_scale())
        assert scaler.step(optimizer) is not None
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        models.assert_same_everywhere(models.gradients(net))


def residuals_follow_the_learning_rate():
    net = models.wrapped()
    with attached(net, codec="efsign") as state:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        state.watch_learning_rate(optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.25)
        models.backward(net, 0)
        optimizer.step()
        before = list(state.residuals().values())
        state._follow()
        for x, y in zip(state.residuals().values(), before):
            assert torch.equal(x, y), "the rate is the same"
        schedule.step()
        saved = state.state_dict()
        state._follow()
        for x, y in zip(state.residuals().values(), before):
            assert models.relative(x, 4.0 * y) < 1e-6, "a quarter of the rate wants residuals four times as large"
        # A state that was saved before the rate changed is scaled when it is loaded after.
        state.load_state_dict(saved)
        state._follow()
        for x, y in zip(state.residuals().values(), before):
            assert models.relative(x, 4.0 * y) < 1e-6
        # Without a rate nothing is applied, and nothing changes.
        optimizer.param_groups[0]["lr"] = 0.0
        state._follow()
        optimizer.param_groups[0]["lr"] = 0.025
        state._follow()
        for x, y in zip(state.residuals().values(), before):
            assert models.relative(x, 4.0 * y) < 1e-6
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0})
        with expecting.error(ValueError, "one factor"):
            state._follow()
    other = models.wrapped()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with attached(other, codec="topk:0.1", momentum=0.9, optimizer=optimizer) as state:
        with expecting.error(ValueError, "without momentum"):
            state.watch_learning_rate(optimizer)


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


def the_profiler_sees_the_hook():
    net = models.wrapped()
    with attached(net):
        models.backward(net, 0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            models.backward(net, 1)
        names = {event.key for event in profile.key_averages()}
        assert {"gradpress::bucket", "gradpress::wait"} <= names, sorted(names)


workers.main(__name__, {
    2: [accumulated_gradients_are_sent_once, bucket_views_static_graphs_and_rebuilt_buckets_work,
        unused_parameters_count_as_zero, what_nobody_uses_keeps_its_residual, sparse_gradients_travel_as_ddp_sends_them,
        other_types_of_gradients_are_taken, ranks_may_run_out_of_inputs,
        a_skipped_step_leaves_residuals_and_a_new_scale_scales_them, residuals_follow_the_learning_rate,
        the_hook_registers_as_any_other, a_trace_is_written_for_the_planner,
        the_profiler_sees_the_hook],
    3: [codecs_change_by_schedule_rule_and_call_and_nothing_is_lost, several_models_and_sub_groups_live_side_by_side],
})
