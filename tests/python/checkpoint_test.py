"""Stopping and going on."""
import io

import gradpress
import models
import torch
import torch.distributed as dist
import workers
from torch.nn.parallel import DistributedDataParallel as DDP


def saved(state):
    """As a file would keep it: no process group inside."""
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def resumed_training_goes_on_bit_for_bit():
    for codec in ("acpsgd:2", "powersgd:2", "topk:0.05", "efsign"):
        straight = models.wrapped()
        state = gradpress.attach(straight, codec=codec)
        models.train(straight, 3)
        weights = {name: tensor.clone() for name, tensor in straight.module.state_dict().items()}
        kept = saved(state)
        wanted = models.train(straight, 3, first=3)
        state.close()
        # Other buckets than before: what is kept belongs to parameters.
        again = models.wrapped(seed=9, cap_mb=100)
        again.module.load_state_dict(weights)
        other = gradpress.attach(again, codec=codec)
        other.load_state_dict(kept)
        assert other.step == 3
        models.assert_same_bits(models.train(again, 3, first=3), wanted)
        other.close()


def another_number_of_ranks_keeps_the_sum_of_residuals():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 3)
    kept = [None] * dist.get_world_size()
    dist.all_gather_object(kept, state.state_dict())
    state.close()
    wanted = {}
    for one in kept:
        for name, residual in one["residuals"].items():
            wanted[name] = wanted.get(name, 0) + residual.double()
    assert wanted
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        fewer = DDP(models.model(), process_group=pair)
        smaller = gradpress.attach(fewer, codec="topk:0.05")
        try:
            smaller.load_state_dict(kept[dist.get_rank()])
        except ValueError as error:
            assert "all ranks' states" in str(error)
        else:
            raise AssertionError("one rank's state of three was taken for the state of two")
        smaller.load_state_dict(kept)
        for (name, _), residual in zip(smaller._parameters, smaller._residuals()):
            total = residual.double()
            dist.all_reduce(total, group=pair)
            if name in wanted:
                assert torch.allclose(total, wanted[name].reshape(-1), rtol=1e-5, atol=1e-9), name
        smaller.close()
    dist.barrier()


def a_state_itself_is_not_pickled():
    state = gradpress.attach(models.wrapped(), codec="none")
    try:
        torch.save(state, io.BytesIO())
    except TypeError as error:
        assert "state_dict" in str(error)
    else:
        raise AssertionError("a State was pickled")


workers.main(__name__, {2: [resumed_training_goes_on_bit_for_bit, a_state_itself_is_not_pickled],
                        3: [another_number_of_ranks_keeps_the_sum_of_residuals]})
