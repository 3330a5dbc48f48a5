"""Gradient accumulation and loss scaling: gradients travel once per update, residuals follow the loss scale.

    gradpress launch -n 2 -- python3 examples/pytorch/accumulate_amp.py

torch's GradScaler does nothing without CUDA; there the losses are not scaled.
"""
import contextlib

import gradpress
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4)))
gp = gradpress.attach(model, codec="acpsgd:4")
scaler = torch.cuda.amp.GradScaler(enabled=torch.cuda.is_available())
gp.watch_scaler(scaler)

optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(1 + dist.get_rank())
for update in range(15):
    for micro in range(ACCUMULATE):
        inputs = torch.randn(32, 64)
        last = micro == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
            scaler.scale(loss / ACCUMULATE).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if dist.get_rank() == 0 and update % 5 == 4:
        print(f"update {update}: loss {loss.item():.3f}, {gp.step} synchronisations")
gp.close()
