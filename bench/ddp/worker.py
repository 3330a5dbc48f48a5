"""One rank of the bench: steps under DDP, with every way to synchronise in turn.

    worker.py '{"model": "lstm", "mode": "replay", "rate_mbit": 1000, "seconds": 4, "settings": ["ddp", "auto"],
                "acpsgd": "", "auto_codecs": ["acpsgd:4", "efsign"]}'

replay: forward and backward are timed waits, 100 ms a step in all: each gradient is due at a fixed time after the step
began, whatever hooks do; there is no optimizer. training: forward, backward and SGD of the real model.
acpsgd: the folder of the published ACP-SGD code, for the setting published-acpsgd.
All settings share one process, and their blocks of steps take turns. Rank 0 prints one line of JSON.
"""
import contextlib
import json
import os
import re
import statistics
import sys
import time

import models
import published
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

FORWARD_S, STEP_S = 0.033, 0.100
BUCKET_MB = 25
TORCH_START = 2
MOST_BUCKETS = 12
# auto must have decided by then.
MOST_AUTO_STEPS = 400
UNDECIDED = ("watching", "measuring", "trying")
BLOCKS = 12
LEAST_STEPS = 3
# DDP rebuilds its buckets after the first step. Steps this long tell what is typical at once.
FIRST_STEPS, FEW_FIRST_STEPS, LONG_S = 4, 2, 2.0
UNCOMPRESSED = ("ddp", "torch-fp16")


class Clock:
    begin = 0.0

    def wait_until(self, due):
        left = self.begin + due - time.perf_counter()
        if left > 0:
            time.sleep(left)


CLOCK = Clock()


class Due(torch.autograd.Function):
    """A layer whose gradient comes at its time. It is handed over without a copy: the accelerator's own memory."""

    @staticmethod
    def forward(ctx, token, parameter, gradient, due, copied):
        ctx.gradient, ctx.due, ctx.copied = gradient, due, copied
        return token.clone()

    @staticmethod
    def backward(ctx, token):
        CLOCK.wait_until(ctx.due)
        # DDP copies it into its bucket. Who works on the gradient itself gets a copy: the next step has the same again.
        return token, ctx.gradient.clone() if ctx.copied else ctx.gradient.detach(), None, None, None


class Replay(torch.nn.Module):
    def __init__(self, weights, gradients):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(weight) for weight in weights)
        self.gradients = gradients
        self.copied = False
        count = len(weights)
        self.due = [FORWARD_S + (STEP_S - FORWARD_S) * (count - i) / count for i in range(count)]

    def forward(self, token):
        CLOCK.wait_until(FORWARD_S)
        for parameter, gradient, due in zip(self.weights, self.gradients, self.due):
            token = Due.apply(token, parameter, gradient, due, self.copied)
        return token


def wait(net):
    """What synchronizes without DDP ends here."""
    if isinstance(net, published.Module):
        net.wait()


class Replayed:
    """Steps of an emulated accelerator."""

    def __init__(self, name):
        generator = torch.Generator().manual_seed(dist.get_rank())
        of_model = [parameter.shape for parameter in models.build(name).parameters()]
        self.weights = [torch.zeros(shape) for shape in of_model]
        self.gradients = [torch.randn(shape, generator=generator) for shape in of_model]

    def module(self):
        return Replay(self.weights, self.gradients)

    def step(self, net):
        net.zero_grad(set_to_none=True)
        token = torch.ones(1, requires_grad=True)
        CLOCK.begin = time.perf_counter()
        net(token).backward()
        wait(net)
        return time.perf_counter() - CLOCK.begin


class Trained:
    """Steps of the real model on one batch."""

    def __init__(self, name):
        self.name = name
        self.inputs, self.labels = models.batch(name, dist.get_rank())
        self.optimizers = {}

    def module(self):
        return models.build(self.name)

    def step(self, net):
        if net not in self.optimizers:
            self.optimizers[net] = torch.optim.SGD(net.parameters(), lr=1e-3)
        begin = time.perf_counter()
        net.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(self.inputs), self.labels).backward()
        wait(net)
        self.optimizers[net].step()
        return time.perf_counter() - begin


def torch_powersgd(net):
    """torch's own, with a process group per bucket: it issues collectives from callbacks, which Gloo pairs by order."""
    groups = [dist.new_group() for _ in range(MOST_BUCKETS)]
    states = [powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=TORCH_START)
              for group in groups]
    done = [0]

    def hook(_, bucket):
        state = states[bucket.index()]
        state.iter = done[0]
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        done[0] += bucket.is_last()
        return future
    net.register_comm_hook(None, hook)


class HandOver:
    """How long the hook keeps the thread of backward busy, bucket by bucket. On the thread's own clock: with two ranks per
    core the other clock also counts what other threads do."""

    def __init__(self, state):
        self._call, self.us = state._on_bucket, []
        state._on_bucket = self

    def __call__(self, bucket):
        begin_ns = time.thread_time_ns()
        future = self._call(bucket)
        self.us.append((time.thread_time_ns() - begin_ns) / 1000)
        return future


def make(setting, job, asked):
    if setting == "published-acpsgd":
        module = job.module()
        module.copied = True
        return published.Module(module, asked["acpsgd"]), None
    net = DistributedDataParallel(job.module(), gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MB)
    if setting in ("compute", "ddp"):
        return net, None
    if setting == "torch-fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return net, None
    if setting == "torch-powersgd":
        torch_powersgd(net)
        return net, None
    import gradpress
    codecs = asked.get("auto_codecs") if setting == "auto" else None
    return net, gradpress.attach(net, codec=setting, auto_codecs=codecs, auto_cache="-")


def run_step(setting, net, job):
    # compute: no communication at all, what is left of a step when the network is free.
    with net.no_sync() if setting == "compute" else contextlib.nullcontext():
        return job.step(net)


def begin(setting, net, state, job):
    """The steps that DDP's buckets and the codecs need to begin, and those in which auto decides; how many."""
    steps = 0
    while steps < FIRST_STEPS:
        took = slowest(run_step(setting, net, job))
        steps += 1
        if steps >= FEW_FIRST_STEPS and took > LONG_S and setting in UNCOMPRESSED:
            break
    while setting == "auto" and any(word in state.summary().splitlines()[0] for word in UNDECIDED):
        assert steps < MOST_AUTO_STEPS, f"auto has not decided after {steps} steps: {state.summary()}"
        run_step(setting, net, job)
        steps += 1
    return steps


def verify(setting, net, job):
    """Right first: the same bits on every rank, and the mean where nothing is compressed."""
    if setting == "compute":
        return
    for index, parameter in enumerate(net.parameters()):
        if index % 7:
            continue
        assert torch.isfinite(parameter.grad).all(), f"{setting}: parameter {index} is not finite"
        other = parameter.grad.clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, parameter.grad), f"{setting}: ranks differ in parameter {index}"
        if setting in ("ddp", "none") and isinstance(job, Replayed):
            mean = job.gradients[index] / dist.get_world_size()
            dist.all_reduce(mean)
            assert torch.allclose(mean, parameter.grad, rtol=1e-4, atol=1e-6), f"{setting}: not the mean"


def slowest(seconds):
    """The same number on every rank."""
    most = torch.tensor([seconds])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def spread(hand_over):
    """The median time of a bucket in the hook, and the one that nine of ten stay below."""
    if hand_over is None or len(hand_over.us) < 2:
        return None
    ordered = sorted(hand_over.us)
    return {"median": round(statistics.median(ordered), 1), "p90": round(ordered[int(0.9 * len(ordered))], 1)}


def blas():
    """Which library torch's matrix products come from."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = sorted({line.split()[-1] for line in maps if re.search(r"blas|mkl", line)})
    return next((path for path in found if "openblas" in path or "mkl" in path), found[0] if found else "none")


def main():
    asked = json.loads(sys.argv[1])
    settings = asked["settings"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = (Replayed if asked["mode"] == "replay" else Trained)(asked["model"])
    nets, began, per_block, hand_overs = {}, {}, {}, {}
    for setting in settings:
        net, state = nets[setting] = make(setting, job, asked)
        hand_overs[setting] = HandOver(state) if state else None
        began[setting] = begin(setting, net, state, job)
        verify(setting, net, job)
        # Short steps are measured often, in as many blocks as the judge wants; long ones a few times.
        samples = [slowest(run_step(setting, net, job))]
        if samples[0] < LONG_S or setting not in UNCOMPRESSED:
            samples += [slowest(run_step(setting, net, job)) for _ in range(LEAST_STEPS - 1)]
        typical = statistics.median(samples)
        per_block[setting] = min(asked["seconds"] / typical, 6 * BLOCKS) / BLOCKS
    for hand_over in filter(None, hand_overs.values()):
        hand_over.us.clear()  # layouts are known from here on
    blocks = {setting: [] for setting in settings}
    for block in range(BLOCKS):
        # Forwards and backwards in turn, so that nobody always follows the same one.
        for setting in settings if block % 2 == 0 else settings[::-1]:
            steps = round(per_block[setting])
            if steps == 0:
                steps = int(len(blocks[setting]) < max(LEAST_STEPS, per_block[setting] * BLOCKS))
            net, _ = nets[setting]
            times = []
            for i in range(steps + (1 if steps and per_block[setting] >= 1 else 0)):
                dist.barrier()
                took = slowest(run_step(setting, net, job))
                # The first one finds the other setting's memory in the caches.
                if i > 0 or per_block[setting] < 1:
                    times.append(took)
            if times:
                blocks[setting].append([round(1e3 * t, 2) for t in times])
    rows = [{"setting": setting, "blocks_ms": blocks[setting], "first_steps": began[setting],
             "running": state.summary().splitlines()[0] if state else "", "log": state.log() if state else {},
             "hand_over_us": spread(hand_overs[setting])}
            for setting, (_, state) in nets.items()]
    if dist.get_rank() == 0:
        megabytes = sum(4 * parameter.numel() for parameter in nets[settings[0]][0].parameters()) / 1e6
        print("RESULT " + json.dumps({**asked, "megabytes": round(megabytes, 1), "blas": blas(), "rows": rows}),
              flush=True)
    dist.barrier()
    # Without destructors: 1.13's process group can hang in its own.
    os._exit(0)


if __name__ == "__main__":
    main()
