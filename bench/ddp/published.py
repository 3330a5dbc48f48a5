"""The published ACP-SGD code (lzhangbv/acpsgd) in the place of DDP. It is not part of this tree: --acpsgd names its folder.

That code synchronizes on a CUDA stream. There is none here: an all-reduce that it issues on its stream is started without
waiting, and where it waits for the stream the all-reduces are waited for. That leaves it the overlap it was written for.
"""
import contextlib
import importlib.util
import pathlib

import torch
import torch.distributed as dist

RANK = 4


class _Stream:
    """Stands for a CUDA stream: the all-reduces that were started on it."""

    def __init__(self):
        self.works = []

    def wait_stream(self, other):
        for work in other.works:
            work.wait()
        other.works.clear()


class _Cuda:
    """Stands for torch.cuda in that module."""

    def __init__(self):
        self.current, self.default = None, _Stream()

    @staticmethod
    def is_available():
        return True

    Stream = _Stream

    def current_stream(self):
        return self.default

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = None


class _Torch:
    """torch with another torch.cuda."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __getattr__(self, name):
        return getattr(torch, name)


class _Distributed:
    """torch.distributed whose all-reduces on a stream do not wait."""

    def __init__(self, cuda):
        self._cuda = cuda

    def all_reduce(self, tensor):
        self._cuda.current.works.append(dist.all_reduce(tensor, async_op=True))

    def __getattr__(self, name):
        return getattr(dist, name)


def _load(folder):
    spec = importlib.util.spec_from_file_location("published_acpsgd", pathlib.Path(folder) / "acpsgd.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cuda = _Cuda()
    module.torch, module.dist = _Torch(cuda), _Distributed(cuda)
    return module


class Module:
    """A model whose gradients that code synchronizes; backward ends when they are there."""

    def __init__(self, module, folder):
        self.module = module
        torch.manual_seed(1)  # the first factors are drawn, and must be the same on all ranks
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        self._published = _load(folder).DistributedOptimizer(optimizer, module.named_parameters(), rank=RANK)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def parameters(self):
        return self.module.parameters()

    def zero_grad(self, set_to_none=False):
        self.module.zero_grad(set_to_none)

    def wait(self):
        """After backward: waits for the sums and forms the gradients."""
        self._published._bp_barrier()
