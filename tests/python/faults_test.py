"""A rank that is gone ends the others' backward."""
import os
import time

import gradpress
import models
import torch.distributed as dist
import workers

VICTIM = 2


def a_killed_rank_is_named_by_every_other():
    net = models.wrapped()
    gradpress.attach(net, codec="acpsgd:2")
    # Past the step in which DDP rebuilds its buckets, by collectives of its own.
    for step in range(3):
        models.backward(net, step)
    if dist.get_rank() == VICTIM:
        os._exit(0)
    try:
        for step in range(3, 6):
            models.backward(net, step)
    except RuntimeError as error:
        assert f"rank {VICTIM}" in str(error), error
    else:
        raise AssertionError("the others went on without it")
    print("passed: a_killed_rank_is_named_by_every_other", flush=True)
    # No barrier: one is missing. But rank 0 hosts the store by which the others learn who is to blame.
    (workers.folder() / f"passed {dist.get_rank()}").touch()
    deadline = time.monotonic() + 60
    while dist.get_rank() == 0 and not (workers.folder() / "passed 1").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)


workers.main(__name__, {3: [a_killed_rank_is_named_by_every_other]})
