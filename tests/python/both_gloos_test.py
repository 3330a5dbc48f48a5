"""torch's Gloo and gradpress's in one process: both send at the same time, whichever was loaded first.

Each Debian's torch loads its own libgloo.so.0, whose versions do not fit each other. A symbol that one Gloo took from the
other would crash here or give wrong sums.
"""
import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

ROUNDS = 20
SIZE = 2
LIMIT_S = 120


def library():
    given = os.environ.get("GRADPRESS_LIBRARY")
    return given or str(pathlib.Path(importlib.util.find_spec("gradpress").origin).with_name("libgradpress.so"))


def rank_main(order, rank, store):
    if order == "gradpress_first":
        ctypes.CDLL(library())
        assert "torch" not in sys.modules
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo", store=dist.FileStore(store, SIZE), rank=rank, world_size=SIZE)
    ours = dist.new_group([0, 1])
    ones = torch.ones(300_000)
    dist.all_reduce(ones)
    assert bool((ones == SIZE).all()), "torch's Gloo, before gradpress is imported"
    import gradpress
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(300, 200), process_group=ours)
    state = gradpress.attach(model, codec="bf16")
    for number in range(ROUNDS):
        raw = torch.full((300_000,), float(rank + number))
        under_way = dist.all_reduce(raw, async_op=True)
        model.zero_grad(set_to_none=True)
        model(torch.full((4, 300), float(rank + 1))).sum().backward()
        under_way.wait()
        assert bool((raw == 2 * number + 1).all()), f"round {number}: torch's Gloo"
        # Of each rank 4 (rank + 1); the mean of 4 and 8, which bf16 holds exactly.
        assert bool((model.module.weight.grad == 6).all()), f"round {number}: gradpress's Gloo"
    assert state.log()["gradpress/sent_bytes"] > 0, "gradpress has sent nothing"
    state.close()
    dist.all_reduce(ones)
    assert bool((ones == SIZE * SIZE).all()), "torch's Gloo, after gradpress is closed"
    dist.destroy_process_group()


def run_job(order):
    with tempfile.TemporaryDirectory(prefix="gradpress-test-") as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, order, str(rank), f"{folder}/store"], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for rank in range(SIZE)]
        passed = True
        for rank, process in enumerate(ranks):
            try:
                output = process.communicate(timeout=LIMIT_S)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + f"\nno end within {LIMIT_S} s"
            if process.returncode:
                passed = False
                print(f"-- {order}, rank {rank}, exit code {process.returncode}\n{output}")
    if passed:
        print(f"passed: {order}")
    return passed


if len(sys.argv) > 1:
    rank_main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
else:
    results = [run_job(order) for order in ("torch_first", "gradpress_first")]
    sys.exit(0 if all(results) else 1)
