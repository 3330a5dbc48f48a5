#!/usr/bin/env python3
"""torch_columns.py [--json F]: what PyTorch's eager operations take, in copies of the gradient.

One thread, 4096 x 4096 floats (64 MiB), heavy-tailed, 8 gradients in rotation, as in `gradpress
bench codec`. A figure is the time over that of a copy of the same 64 MiB in the same process, each
the minimum over the repetitions. With --json F the table becomes the field "torch" of F, beside
what is there.
"""
import argparse
import json
import os
import re
import sys
import time

import torch

SIDE = 4096
GRADIENTS = 8
RANK = 4


def gradient(generator):
    """A normal divided by a small uniform power: heavy tails, both signs."""
    normal = torch.randn(SIDE, SIDE, generator=generator)
    tail = torch.rand(SIDE, SIDE, generator=generator).add_(0.02)
    return normal.mul_(0.01).div_(tail.square_())


def fastest(step, repetitions):
    """Seconds of step(i), the least of `repetitions` after two that warm up."""
    times = []
    for i in range(repetitions + 2):
        started = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - started)
    return min(times[2:])


class LowRank:
    """What the low-rank methods share: error feedback and two factors, in memory that stays."""

    def __init__(self, grads):
        self.grads = grads
        self.x = torch.zeros(SIDE, SIDE)
        self.error = torch.zeros(SIDE, SIDE)
        self.decoded = torch.zeros(SIDE, SIDE)
        self.p = torch.linalg.qr(torch.randn(SIDE, RANK))[0]
        self.q = torch.linalg.qr(torch.randn(SIDE, RANK))[0]

    def begin(self, i):
        torch.add(self.grads[i % GRADIENTS], self.error, out=self.x)

    def finish(self):
        torch.matmul(self.p, self.q.t(), out=self.decoded)
        torch.sub(self.x, self.decoded, out=self.error)


class PowerSgd(LowRank):
    """Both factors in every step."""

    def step(self, i):
        self.begin(i)
        self.p = torch.linalg.qr(torch.matmul(self.x, self.q))[0]
        self.q = torch.matmul(self.x.t(), self.p)
        self.finish()


class AcpSgd(LowRank):
    """One factor a step, in turns; two steps are timed and halved."""

    def step(self, i):
        self.begin(2 * i)
        self.q = torch.linalg.qr(self.q)[0]
        self.p = torch.matmul(self.x, self.q)
        self.finish()
        self.begin(2 * i + 1)
        self.p = torch.linalg.qr(self.p)[0]
        self.q = torch.matmul(self.x.t(), self.p)
        self.finish()


def pack_signs(x, weights):
    """One bit an element, lowest first: the usual eager idiom."""
    return (x.view(-1, 8) < 0).to(torch.uint8).mul_(weights).sum(dim=1, dtype=torch.uint8)


def operations(grads):
    """(name, what is timed, the step, how many round trips one step makes)"""
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)
    flat = [grad.view(-1) for grad in grads]

    magnitudes = torch.zeros(SIDE * SIDE)

    def topk(ratio):
        kept = int(ratio * SIDE * SIDE)
        return lambda i: torch.topk(torch.abs(flat[i % GRADIENTS], out=magnitudes), kept,
                                    sorted=False)

    return [
        ("powersgd:4", "encode, error feedback, decode", PowerSgd(grads).step, 1),
        ("acpsgd:4", "encode, error feedback, decode", AcpSgd(grads).step, 2),
        ("topk:0.001", "selection alone", topk(0.001), 1),
        ("topk:0.01", "selection alone", topk(0.01), 1),
        ("sign", "packing to bits alone", lambda i: pack_signs(flat[i % GRADIENTS], weights), 1),
        ("fp16", "cast alone", lambda i: grads[i % GRADIENTS].to(torch.float16), 1),
    ]


def blas():
    """The BLAS this process loaded: the low-rank rows are mostly its work."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    found = sorted(path for path in paths if re.search(r"(blas|mkl_rt|blis)[^/]*\.so", path))
    return ", ".join(found) or "linked into torch"


def write_json(path, table):
    """Adds the table to the file, or makes the file."""
    content = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    content["torch"] = table
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    os.replace(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", metavar="F", help="write the table into F as well")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    if args.repetitions < 1:
        sys.exit(f"torch_columns.py: wanted at least 1 repetition, got {args.repetitions}")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(7)
    grads = [gradient(generator) for _ in range(GRADIENTS)]
    target = torch.zeros(SIDE, SIDE)
    copy = fastest(lambda i: target.copy_(grads[i % GRADIENTS]), 3 * args.repetitions)

    print(f"PyTorch {torch.__version__}, eager, one thread, {SIDE} x {SIDE}; "
          f"1.0 = one copy of {4 * SIDE * SIDE >> 20} MiB = {copy * 1e3:.2f} ms")
    print(f"BLAS: {blas()}")
    print(f"{'codec':<12}{'vs memcpy':>10}  what is timed")
    rows = []
    for name, what, step, trips in operations(grads):
        ratio = fastest(step, args.repetitions) / trips / copy
        rows.append({"codec": name, "vs_memcpy": round(ratio, 3), "timed": what})
        print(f"{name:<12}{ratio:>10.2f}  {what}", flush=True)
    if args.json:
        write_json(args.json, {
            "version": torch.__version__, "blas": blas(), "elements": SIDE * SIDE,
            "repetitions": args.repetitions, "memcpy_gbs": round(4 * SIDE * SIDE / copy / 1e9, 3),
            "rows": rows})


if __name__ == "__main__":
    main()
