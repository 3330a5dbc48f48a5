"""A tiny GPT-2, trained by Hugging Face Accelerate with gradpress on two ranks of this machine:

    gradpress launch -n 2 -- python3 examples/pytorch/accelerate_gpt2.py
"""
import gradpress
import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
text = torch.tensor(list((b"the quick brown fox jumps over the lazy dog. " * 40)[:1600])).view(-1, 32)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(text), batch_size=5, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

gp = gradpress.attach(model, codec="acpsgd:4")  # this is the line

for epoch in range(10):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
    if accelerator.is_main_process:
        print(f"epoch {epoch}: loss {loss.item():.3f}, sent {gp.log()['gradpress/sent_bytes']} B of "
              f"{gp.log()['gradpress/raw_gradient_bytes']} B a step", flush=True)
gp.close()
accelerator.wait_for_everyone()
