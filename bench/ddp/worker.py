"""One rank of the bench: steps under DDP, with every way to synchronise in turn.

    worker.py MODEL RATE_MBIT SECONDS SETTING...

Forward and backward are timed waits, 100 ms a step in all: each gradient is due at a fixed time after the step began,
whatever hooks do; there is no optimizer.
All settings share one process, and their rounds alternate. Rank 0 prints one line of JSON.
"""
import contextlib
import json
import os
import sys
import time

import shapes
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

FORWARD_S, STEP_S = 0.033, 0.100
BUCKET_MB = 25
TORCH_START = 2
MOST_BUCKETS = 12
AUTO_STEPS = 45
ROUNDS = 3


class Clock:
    begin = 0.0

    def wait_until(self, due):
        left = self.begin + due - time.perf_counter()
        if left > 0:
            time.sleep(left)


CLOCK = Clock()


class Due(torch.autograd.Function):
    """A layer whose gradient comes at its time."""

    @staticmethod
    def forward(ctx, token, parameter, gradient, due):
        ctx.gradient, ctx.due = gradient, due
        return token.clone()

    @staticmethod
    def backward(ctx, token):
        CLOCK.wait_until(ctx.due)
        return token, ctx.gradient, None, None


class Replay(torch.nn.Module):
    def __init__(self, weights, gradients):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(weight) for weight in weights)
        self.gradients = gradients
        count = len(weights)
        self.due = [FORWARD_S + (STEP_S - FORWARD_S) * (count - i) / count for i in range(count)]

    def forward(self, token):
        CLOCK.wait_until(FORWARD_S)
        for parameter, gradient, due in zip(self.weights, self.gradients, self.due):
            token = Due.apply(token, parameter, gradient, due)
        return token


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


class Replayed:
    """Steps of an emulated accelerator."""

    def __init__(self, name):
        generator = torch.Generator().manual_seed(dist.get_rank())
        of_model = shapes.MODELS[name]()
        self.weights = [torch.zeros(shape) for shape in of_model]
        self.gradients = [torch.randn(shape, generator=generator) for shape in of_model]
        self.megabytes = sum(4 * weight.numel() for weight in self.weights) / 1e6

    def module(self):
        return Replay(self.weights, self.gradients)

    def step(self, net):
        net.zero_grad(set_to_none=True)
        token = torch.ones(1, requires_grad=True)
        CLOCK.begin = time.perf_counter()
        net(token).backward()
        return time.perf_counter() - CLOCK.begin


def make(setting, job):
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
    return net, gradpress.attach(net, codec=setting, auto_cache="-")


def run_step(setting, net, job):
    # compute: no communication at all, what is left of a step when the network is free.
    with net.no_sync() if setting == "compute" else contextlib.nullcontext():
        return job.step(net)


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
        if setting in ("ddp", "none"):
            mean = job.gradients[index] / dist.get_world_size()
            dist.all_reduce(mean)
            assert torch.allclose(mean, parameter.grad, rtol=1e-4, atol=1e-6), f"{setting}: not the mean"


def steps_for(setting, megabytes, rate_mbit, seconds):
    """The same on every rank: from sizes and rates alone."""
    share = {"ddp": 1.0, "none": 1.0, "auto": 0.1, "torch-fp16": 0.6}.get(setting, 0.02)
    share = 0.0 if setting == "compute" else share
    estimate = STEP_S * 1.5 + share * (1.5 * 8 * megabytes / rate_mbit if rate_mbit else 0.3)
    return max(3, min(20, int(seconds / estimate)))


def main():
    name, rate_mbit, seconds, settings = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = Replayed(name)
    nets = {setting: make(setting, job) for setting in settings}
    for setting, (net, _) in nets.items():
        # Those that DDP's buckets and the codecs need to begin; auto measures and plans for longer.
        for _ in range(AUTO_STEPS if setting == "auto" else 3):
            run_step(setting, net, job)
        verify(setting, net, job)
    times = {setting: [] for setting in settings}
    for _ in range(ROUNDS):
        for setting, (net, _) in nets.items():
            dist.barrier()
            for _ in range(-(-steps_for(setting, job.megabytes, rate_mbit, seconds) // ROUNDS)):
                times[setting].append(run_step(setting, net, job))
    result = {"model": name, "megabytes": round(job.megabytes, 1), "rows": [
        {"setting": setting, "step_ms": [round(1e3 * t, 2) for t in times[setting]],
         "running": state.summary().splitlines()[0] if state else "", "log": state.log() if state else {}}
        for setting, (_, state) in nets.items()]}
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    # Without destructors: 1.13's process group can hang in its own.
    os._exit(0)


if __name__ == "__main__":
    main()
