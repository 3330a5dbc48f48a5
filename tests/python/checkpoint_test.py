"""Stopping and going on."""
import io
import logging

import expecting
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


def another_number_of_ranks_keeps_what_is_owed_to_the_mean():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 3)
    kept = [None] * dist.get_world_size()
    dist.all_gather_object(kept, state.state_dict())
    owed = {}
    for name, residual in state.residuals().items():
        owed[name] = residual.double()
        dist.all_reduce(owed[name])
        owed[name] /= dist.get_world_size()
    state.close()
    assert any(bool(mean.any()) for mean in owed.values())
    groups = {2: dist.new_group([0, 1]), 1: dist.new_group([0])}
    for size, group in groups.items():
        if dist.get_rank() >= size:
            continue
        fewer = DDP(models.model(), process_group=group)
        smaller = gradpress.attach(fewer, codec="topk:0.05")
        with expecting.error(ValueError, "all ranks' states"):
            smaller.load_state_dict(kept[dist.get_rank()])
        with expecting.error(ValueError, "got those of [0]"):
            smaller.load_state_dict(kept[:1])
        smaller.load_state_dict(kept)
        for name, residual in smaller.residuals().items():
            mean = residual.double()
            dist.all_reduce(mean, group=group)
            mean /= size
            assert torch.allclose(mean, owed[name], rtol=1e-5, atol=1e-9), (size, name)
        smaller.close()
    dist.barrier()


def a_job_of_one_rank_pays_what_is_owed():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 3)
    kept = [None] * dist.get_world_size()
    dist.all_gather_object(kept, state.state_dict())
    everything = {name: residual.clone() for name, residual in state.residuals().items()}
    for residual in everything.values():
        dist.all_reduce(residual)
    state.close()
    alone_group = dist.new_group([0])
    if dist.get_rank() == 0:
        alone, plain = DDP(models.model(), process_group=alone_group), DDP(models.model(), process_group=alone_group)
        last = gradpress.attach(alone, codec="topk:0.05")
        last.load_state_dict(kept)
        assert last.residuals().keys() == everything.keys()
        for one in (alone, plain):
            models.backward(one, 7)
        for (name, x), y in zip(alone.module.named_parameters(), plain.module.parameters()):
            wanted = y.grad.reshape(-1) + everything[name] / len(kept)
            assert torch.allclose(x.grad.reshape(-1), wanted, atol=1e-7), name
        models.backward(alone, 8)
        assert not any(bool(residual.any()) for residual in last.residuals().values())
    dist.barrier()


def the_codec_given_to_attach_stays_and_residuals_carry_over():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 3)
    kept, before = saved(state), state.residuals()
    state.close()
    again = models.wrapped()
    other = gradpress.attach(again, codec="efsign")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gradpress").addHandler(handler)
    other.load_state_dict(kept)
    logging.getLogger("gradpress").removeHandler(handler)
    assert other.codec == "efsign" and other.step == 3
    if dist.get_rank() == 0:
        assert any("topk:0.05" in line and "efsign" in line for line in lines), lines
    for name, residual in other.residuals().items():
        assert torch.allclose(residual, before[name], rtol=1e-6, atol=1e-12), name
    other.close()


def a_state_holds_residuals_once_and_damage_is_refused():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 2)
    kept = state.state_dict()
    elements = sum(kept["elements"])
    assert kept["checkpoint"].numel() < 1.2 * 4 * elements, (kept["checkpoint"].numel(), elements)
    assert not kept["owed"]
    before = state.residuals()
    damaged = dict(kept, checkpoint=kept["checkpoint"].clone())
    damaged["checkpoint"][len(damaged["checkpoint"]) // 2] ^= 4
    with expecting.error(RuntimeError, "checksum"):
        state.load_state_dict(damaged)
    for wrong, words in ((dict(kept, format=1), "format"), ({}, "format"), ([], "nothing")):
        with expecting.error(ValueError, words):
            state.load_state_dict(wrong)
    other = dict(kept, names=["nobody." + name for name in kept["names"]], codec="efsign")
    with expecting.error(ValueError, "nobody."):
        state.load_state_dict(other)
    for name, residual in state.residuals().items():
        assert torch.equal(residual, before[name]), name
    state.close()


workers.main(__name__, {2: [resumed_training_goes_on_bit_for_bit, the_codec_given_to_attach_stays_and_residuals_carry_over,
                            a_state_holds_residuals_once_and_damage_is_refused, a_job_of_one_rank_pays_what_is_owed],
                        3: [another_number_of_ranks_keeps_what_is_owed_to_the_mean]})
