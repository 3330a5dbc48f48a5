"""Runs test cases in several processes of one job, all cases in the same ones: starting torch takes seconds.

    workers.main(__name__, {2: [case, …], 3: […]})

Every rank runs every case, in order; a case that raises fails the test, and ends the job.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

LIMIT_S = 240


def main(name, cases):
    if name != "__main__":
        return
    if "GRADPRESS_TEST_STORE" in os.environ:
        run_rank(cases[int(os.environ["WORLD_SIZE"])])
    failed = False
    for size, of_size in cases.items():
        failed = not run_job(size, of_size) or failed
    sys.exit(1 if failed else 0)


def run_job(size, cases):
    with tempfile.TemporaryDirectory(prefix="gradpress-test-") as folder:
        variables = {**os.environ, "GRADPRESS_TEST_STORE": f"{folder}/store", "GRADPRESS_TEST_FOLDER": folder,
                     "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
                     # Some virtual machines announce AMX and refuse it: torch's own bf16 products die there (SIGILL).
                     "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
        variables.pop("GLOO_SOCKET_IFNAME", None)
        ranks = [subprocess.Popen([sys.executable, sys.argv[0]], env={**variables, "RANK": str(rank)},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(size)]
        deadline = time.monotonic() + LIMIT_S
        texts = []
        for process in ranks:
            try:
                texts.append(process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                process.kill()
                texts.append(process.communicate()[0] + f"\nno end within {LIMIT_S} s\n")
        codes = [process.returncode for process in ranks]
    if any(codes):
        for rank, (code, text) in enumerate(zip(codes, texts)):
            print(f"-- rank {rank} of {size}, exit code {code}\n{text}")
        return False
    print(texts[0], end="")
    return True


def run_rank(cases):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(os.environ["GRADPRESS_TEST_STORE"], size), rank=rank,
                            world_size=size)
    for case in cases:
        try:
            case()
        except BaseException:
            traceback.print_exc()
            print(f"failed: {case.__name__}", flush=True)
            os._exit(1)
        print(f"passed, {size} ranks: {case.__name__}", flush=True)
    dist.barrier()
    # Without destructors: 1.13's process group can hang in its own.
    sys.stdout.flush()
    os._exit(0)


def folder():
    """One that all ranks of the job share."""
    return pathlib.Path(os.environ["GRADPRESS_TEST_FOLDER"])
