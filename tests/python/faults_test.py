"""A rank that is gone, or silent, ends the others' backward."""
import os
import time

import expecting
import gradpress
import models
import torch.distributed as dist
import workers
from gradpress import _torch_versions

VICTIM = 2


def the_process_groups_timeout_counts_unless_another_is_given():
    own = _torch_versions.timeout_of(_torch_versions.default_group()).total_seconds()
    for given, wanted in ((None, own), (7.5, 7.5)):
        state = gradpress.attach(models.wrapped(), codec="none", timeout_s=given)
        assert state._timeout_s() == wanted, (given, state._timeout_s())


def a_busy_rank_is_told_from_a_dead_one():
    net = models.wrapped()
    state = gradpress.attach(net, codec="acpsgd:2", timeout_s=2.0)
    for step in range(2):
        models.backward(net, step)
    if dist.get_rank() == 0:
        time.sleep(8.0)  # evaluates, say
    with expecting.error(gradpress.PeerLost, "timeout_s"):
        for step in range(2, 5):
            models.backward(net, step)
    assert isinstance(state.failure, gradpress.PeerLost)
    state.close()
    dist.barrier()


def a_killed_rank_is_named_by_every_other():
    net = models.wrapped()
    state = gradpress.attach(net, codec="acpsgd:2")
    # Past the step in which DDP rebuilds its buckets, by collectives of its own.
    for step in range(3):
        models.backward(net, step)
    if dist.get_rank() == VICTIM:
        os._exit(0)
    began = time.monotonic()
    with expecting.error(gradpress.PeerLost, f"rank {VICTIM}"):
        for step in range(3, 6):
            models.backward(net, step)
    assert time.monotonic() - began < 60, "a dead process is found long before the process group's timeout"
    assert isinstance(state.failure, gradpress.PeerLost)
    print("passed: a_killed_rank_is_named_by_every_other", flush=True)
    # No barrier: one is missing. But rank 0 hosts the store by which the others learn who is to blame.
    (workers.folder() / f"passed {dist.get_rank()}").touch()
    deadline = time.monotonic() + 60
    while dist.get_rank() == 0 and not (workers.folder() / "passed 1").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)


workers.main(__name__, {2: [the_process_groups_timeout_counts_unless_another_is_given, a_busy_rank_is_told_from_a_dead_one],
                        3: [a_killed_rank_is_named_by_every_other]})
