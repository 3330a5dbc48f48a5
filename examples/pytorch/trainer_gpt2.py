"""A tiny GPT-2, trained by Hugging Face Transformers' Trainer with gradpress on two ranks of this machine:

    gradpress launch -n 2 -- python3 examples/pytorch/trainer_gpt2.py [FOLDER]
"""
import sys
import tempfile

import torch
from gradpress.integrations.transformers import GradpressCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
text = torch.tensor(list((b"the quick brown fox jumps over the lazy dog. " * 40)[:1600])).view(-1, 32)
data = [{"input_ids": row, "labels": row} for row in text]
folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="gradpress-trainer-")
args = TrainingArguments(output_dir=folder, per_device_train_batch_size=5, num_train_epochs=10, learning_rate=2e-3,
                         logging_steps=10, save_steps=25, use_cpu=True, report_to=[], disable_tqdm=True)
trainer = Trainer(model=model, args=args, train_dataset=data)

trainer.add_callback(GradpressCallback(trainer, codec="acpsgd:4"))  # this is the line

trainer.train()
