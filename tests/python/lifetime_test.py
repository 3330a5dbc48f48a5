"""Models and processes that come and go: forks, exits, wrapping again, several models."""
import gc
import inspect
import io
import os
import subprocess
import sys
import weakref

import expecting
import gradpress
import models
import torch
import torch.distributed as dist
import workers
from torch.nn.parallel import DistributedDataParallel as DDP


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index))


def loaders_fork_while_training_goes_on():
    net = models.wrapped()
    state = gradpress.attach(net, codec="efsign")
    models.backward(net, 0)
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        for batch in loader:
            net.zero_grad()
            net(batch).sum().backward()
    models.assert_same_everywhere(models.gradients(net))
    state.close()


ENDINGS = {
    "nothing": "",
    "close": "gp.close()",
    "destroy": "dist.destroy_process_group()",
    "close, destroy": "gp.close(); dist.destroy_process_group()",
    "destroy, close": "dist.destroy_process_group(); gp.close()",
    "delete": "del net; del gp",
}

PROGRAM = """
import datetime, os, sys
import torch, torch.distributed as dist
sys.path.insert(0, {folder!r})
import gradpress, models
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=int(sys.argv[2]), world_size=2)
net = models.wrapped()
gp = gradpress.attach(net, codec="efsign")
for step in range(2):
    models.backward(net, step)
dist.barrier()
{ending}
"""


# The child does all that the end of a script would do to gradpress, then ends as multiprocessing's children do: torch's own
# process group does not survive its destructor in a forked child (1.13: std::system_error, without gradpress as well).
FORKING = """
import atexit, gc
child = os.fork()
if child == 0:
    try:
        gp.residuals()
    except RuntimeError as error:
        assert "forked" in str(error), error
    else:
        os._exit(3)
    gp.close()
    del gp
    gc.collect()
    atexit._run_exitfuncs()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, f"the child ended with {status}"
for step in range(2, 5):
    net.zero_grad()
    models.backward(net, step)
models.assert_same_everywhere(models.gradients(net))
dist.barrier()
"""


def run_pair(name, ending):
    """Two ranks of a program that ends so."""
    store = workers.folder() / f"ending-{name.replace(', ', '-')}"
    program = PROGRAM.format(folder=os.path.dirname(os.path.abspath(__file__)), ending=ending)
    both = [subprocess.Popen([sys.executable, "-c", program, str(store), str(rank)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env={**os.environ, "MASTER_ADDR": "127.0.0.1"})
            for rank in range(2)]
    for rank, process in enumerate(both):
        try:
            text = process.communicate(timeout=120)[0]
        except subprocess.TimeoutExpired:
            for one in both:
                one.kill()
            raise AssertionError(f"{name}: rank {rank} did not end within 120 s") from None
        assert process.returncode == 0, f"{name}: rank {rank} ended with {process.returncode}\n{text}"


def programs_end_in_any_order():
    for name, ending in ENDINGS.items():
        run_pair(name, ending)


def a_forked_child_exits_cleanly_and_the_parent_goes_on():
    run_pair("fork", FORKING)


def saved_and_loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    # From 2.6 on torch.load takes tensors alone unless told otherwise; 1.13.0 does not know the argument.
    options = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(file, **options)


def a_wrapped_model_can_be_saved_and_attached_again():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.backward(net, 0)
    again = saved_and_loaded(net)
    for x, y in zip(net.module.parameters(), again.module.parameters()):
        assert torch.equal(x, y)
    other = gradpress.attach(again, codec="topk:0.05")
    models.backward(again, 0)
    models.assert_same_everywhere(models.gradients(again))
    state.close()
    other.close()
    with expecting.error(AttributeError, "attach"):
        saved_and_loaded(state).summary()


def a_closed_state_says_so():
    net = models.wrapped()
    gradpress.attach(net, codec="efsign").close()
    with expecting.error(RuntimeError, "closed"):
        models.backward(net, 0)


def models_are_wrapped_again_frozen_and_thawed():
    module = models.model()
    for _ in range(2):
        net = DDP(module, bucket_cap_mb=0.2)
        state = gradpress.attach(net, codec="efsign")
        models.backward(net, 0)
        models.assert_same_everywhere(models.gradients(net))
        state.close()
        net.zero_grad(set_to_none=True)
        # Else the old wrapper's hooks on the parameters stay: so it is without gradpress, too.
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None, "something keeps the DDP model"
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    net = DDP(module, bucket_cap_mb=0.2)
    state = gradpress.attach(net, codec="efsign")
    models.backward(net, 1)
    assert "0.weight" not in state.summary() and "3.weight" in state.summary()
    for parameter in module[0].parameters():
        assert parameter.grad is None
    state.close()
    del net
    gc.collect()
    for parameter in module[0].parameters():
        parameter.requires_grad_(True)
    net = DDP(module, bucket_cap_mb=0.2)
    state = gradpress.attach(net, codec="efsign")
    models.backward(net, 2)
    assert "0.weight" in state.summary()
    state.close()


def adversaries_train_side_by_side():
    torch.manual_seed(0)
    maker = DDP(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)))
    judge = DDP(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)),
                broadcast_buffers=False)
    states = [gradpress.attach(net, codec="efsign") for net in (maker, judge)]
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        noise, real = torch.randn(8, 16, generator=generator), torch.randn(8, 32, generator=generator)
        judge.zero_grad()
        (judge(maker(noise).detach()).mean() - judge(real).mean()).backward()
        models.assert_same_everywhere(models.gradients(judge))
        maker.zero_grad()
        judge.module.requires_grad_(False)
        (-judge.module(maker(noise)).mean()).backward()
        judge.module.requires_grad_(True)
        models.assert_same_everywhere(models.gradients(maker))
    for state in states:
        state.close()


workers.main(__name__, {2: [
    loaders_fork_while_training_goes_on, a_closed_state_says_so, a_wrapped_model_can_be_saved_and_attached_again, models_are_wrapped_again_frozen_and_thawed,
    adversaries_train_side_by_side], 1: [programs_end_in_any_order,
                                           a_forked_child_exits_cleanly_and_the_parent_goes_on]})
