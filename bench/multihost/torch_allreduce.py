"""One rank of PyTorch's own all-reduce over Gloo, started by allreduce.py on every host: rank 0 prints its times in
microseconds, one list in JSON. A time is the slowest rank's, from a barrier on, as in gradpress bench collective."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    size_bytes, warmup, timed = (int(word) for word in sys.argv[1:4])
    dist.init_process_group("gloo")
    tensor = torch.ones(size_bytes // 4)
    times = []
    for turn in range(warmup + timed):
        tensor.fill_(1.0)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        if not torch.equal(tensor, torch.full_like(tensor, dist.get_world_size())):
            sys.exit("torch_allreduce: wrong sum")
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if turn >= warmup:
            times.append(1e6 * took.item())
    if dist.get_rank() == 0:
        print(json.dumps(times), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # Threads of torch 1.13 may still be there when the interpreter takes itself down, which then aborts.
    os._exit(0)


if __name__ == "__main__":
    main()
