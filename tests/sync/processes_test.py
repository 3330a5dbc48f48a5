"""processes_test.py PROGRAM BACKEND: PROGRAM as the four workers of two machines, all of them on this host."""
import os
import socket
import subprocess
import sys

MACHINES, WORKERS = 2, 2
DEADLINE_S = 500


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    program, backend = sys.argv[1:]
    port = free_port()
    workers = []
    for rank in range(MACHINES * WORKERS):
        variables = {
            "RANK": rank, "WORLD_SIZE": MACHINES * WORKERS, "LOCAL_RANK": rank % WORKERS, "LOCAL_WORLD_SIZE": WORKERS,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        workers.append(subprocess.Popen([program, backend], env=environment))
    try:
        codes = [worker.wait(timeout=DEADLINE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    print("exit codes by rank:", codes)
    return 0 if codes == [0] * len(workers) else 1


if __name__ == "__main__":
    sys.exit(main())
