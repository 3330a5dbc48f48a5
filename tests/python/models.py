"""Small models, data and steps that the tests share."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def model(seed=1, kind=torch.float32):
    """Same weights on every rank, several buckets under a small cap, and a convolution."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 64, 96),
        torch.nn.ReLU(), torch.nn.Linear(96, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(kind)


def data(step, rank=None, kind=torch.float32):
    """Different on every rank and at every step."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(8, 3, 8, 8, generator=generator).to(kind),
            torch.randint(0, 10, (8,), generator=generator))


def backward(net, step, scale=1.0):
    inputs, labels = data(step, kind=next(net.parameters()).dtype)
    (scale * torch.nn.functional.cross_entropy(net(inputs).float(), labels)).backward()


def gradients(net):
    return [parameter.grad.detach().clone() for parameter in net.parameters()]


def train(net, steps, first=0, rate=0.1, batches=None, kept=None):
    """Every step's gradients, with plain SGD in between; of so many batches in turn, or of a new one in every step.

    kept: a function of the step: whether the gradients' memory stays; None: as torch does by default.
    """
    seen = []
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for step in range(first, first + steps):
        optimizer.zero_grad(**({} if kept is None else {"set_to_none": not kept(step)}))
        backward(net, step % batches if batches else step)
        seen.append(gradients(net))
        optimizer.step()
    return seen


def wrapped(seed=1, kind=torch.float32, cap_mb=0.2, **options):
    """In several buckets."""
    return DDP(model(seed, kind), bucket_cap_mb=cap_mb, **options)


def group_sends(kind):
    """Whether torch's process group takes this type: Debian's Gloo for 2.14 refuses two-byte types, 1.13's bfloat16."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=kind))
    except RuntimeError as error:
        print(f"torch's process group refuses {kind}: {error}", flush=True)
        return False
    return True


def assert_same_bits(ours, theirs):
    for step, (a, b) in enumerate(zip(ours, theirs)):
        for i, (x, y) in enumerate(zip(a, b)):
            assert torch.equal(x, y), f"step {step}, parameter {i}: {(x - y).abs().max()} apart"


def assert_same_everywhere(seen):
    """Every rank holds the same bits."""
    for i, tensor in enumerate(seen):
        others = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(others, tensor.contiguous())
        for rank, other in enumerate(others):
            assert torch.equal(tensor, other), f"parameter {i}: ranks {dist.get_rank()} and {rank} differ"


def relative(x, y):
    return float((x - y).norm() / y.norm().clamp_min(1e-30))
