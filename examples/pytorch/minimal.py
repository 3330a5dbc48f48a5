"""Compressed data-parallel training in one more line.

    gradpress launch -n 2 -- python3 examples/pytorch/minimal.py
"""
import gradpress
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4)))
gp = gradpress.attach(model, codec="acpsgd:4")  # this is the line

teacher = torch.randn(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())  # other data on every rank
for step in range(60):
    inputs = torch.randn(32, 64)
    loss = torch.nn.functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 20 == 19:
        print(f"step {step}: loss {loss.item():.3f}, sent {gp.log()['gradpress/sent_bytes']} B")
if dist.get_rank() == 0:
    print(gp.summary())
gp.close()
