"""Hugging Face Transformers: a callback that attaches gradpress to the model that Trainer wraps.

    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.add_callback(GradpressCallback(trainer, codec="acpsgd:4"))
    trainer.train()
"""
from __future__ import annotations

import pathlib
from typing import Any, Dict, Optional

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import Trainer, TrainerCallback

from gradpress import _torch_versions
from gradpress._hook import attach
from gradpress._state import State


class GradpressCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches gradpress when training begins, adds its numbers to Trainer's log, and saves its state with checkpoints.

    trainer: the Trainer that it is added to.
    arguments: as `gradpress.attach`.

    Without DistributedDataParallel (one process) it does nothing.
    """

    def __init__(self, trainer: Trainer, **arguments: Any) -> None:
        self._trainer = trainer
        self._arguments = arguments
        self.state: Optional[State] = None  # what attach returned

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        model = _torch_versions.unwrapped(self._trainer.model_wrapped)
        if not isinstance(model, DDP):
            return
        self.state = attach(model, **self._arguments)
        resumed = args.resume_from_checkpoint
        if isinstance(resumed, str) and (pathlib.Path(resumed) / self._file(0)).exists():
            self._load(pathlib.Path(resumed))

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
        if self.state is not None and logs is not None:
            logs.update(self.state.log())

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.state is not None:
            folder = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self.state.state_dict(), folder / self._file(args.process_index))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.state is not None:
            self.state.close()
            self.state = None

    @staticmethod
    def _file(rank: int) -> str:
        return f"gradpress-{rank}.pt"

    def _load(self, folder: pathlib.Path) -> None:
        assert self.state is not None
        first = torch.load(folder / self._file(0))
        files = [folder / self._file(rank) for rank in range(first["world_size"])]
        self.state.load_state_dict([torch.load(file) for file in files])
