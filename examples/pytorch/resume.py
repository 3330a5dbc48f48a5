"""Stops after half of the steps and goes on from a checkpoint, as if it had never stopped.

    gradpress launch -n 2 -- python3 examples/pytorch/resume.py FOLDER

Every rank keeps a file of its own: residuals differ from rank to rank. To go on with another number of ranks, give
load_state_dict the list of all files' states.
"""
import pathlib
import sys

import gradpress
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def start():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), gradpress.attach(model, codec="acpsgd:4")


def train(model, optimizer, steps):
    for step in steps:
        data = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        inputs = torch.randn(32, 64, generator=data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1)).backward()
        optimizer.step()


dist.init_process_group("gloo")
file = pathlib.Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt"

model, optimizer, gp = start()
train(model, optimizer, range(STEPS // 2))
torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "gradpress": gp.state_dict()}, file)
train(model, optimizer, range(STEPS // 2, STEPS))
wanted = model.module.state_dict()
gp.close()

model, optimizer, gp = start()  # as another run would
kept = torch.load(file)
model.module.load_state_dict(kept["model"])
optimizer.load_state_dict(kept["optimizer"])
gp.load_state_dict(kept["gradpress"])
train(model, optimizer, range(gp.step, STEPS))
same = all(torch.equal(wanted[name], tensor) for name, tensor in model.module.state_dict().items())
gp.close()
print(f"rank {dist.get_rank()}: resumed at step {STEPS // 2}, weights after {STEPS} steps are "
      f"{'the same' if same else 'different'}")
sys.exit(0 if same else 1)
