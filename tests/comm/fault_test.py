"""fault_test.py PROCESS_WORKER: jobs of real processes over Gloo, to which things happen. Every rank that lives must say,
by itself and in time, which rank is to blame, in which collective and tensor; then the others form a new world and go on."""
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

WORKER = sys.argv.pop(1)
# Only against hangs: the loaded machine of a test farm may take its time.
HANG = 240


class Job:
    """Some ranks of a world of `size`, each a process."""

    def __init__(self, size, roles=None, environment=None, odd_environment=None, store=None):
        self.size = size
        self.ranks = {}
        roles = roles or {rank: "loop" for rank in range(size)}
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("GRADPRESS_", "OMPI_", "PMI"))}
        if store:
            variables["GRADPRESS_STORE"] = store
        else:
            variables["MASTER_PORT"] = str(free_port())
        variables.update({"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
        variables.update(environment or {})
        for rank, role in roles.items():
            own = dict(variables, RANK=str(rank), **(odd_environment or {}).get(rank, {}))
            self.ranks[rank] = subprocess.Popen([WORKER, role], env=own, stdout=subprocess.PIPE, text=True)

    def wait_until_running(self):
        for process in self.ranks.values():
            line = process.stdout.readline()
            assert line.strip() == "running", line

    def signal(self, rank, number):
        self.ranks[rank].send_signal(number)

    def outcome(self, rank):
        """What the rank said until its end."""
        out, _ = self.ranks[rank].communicate(timeout=HANG)
        return out

    def end(self):
        for process in self.ranks.values():
            process.kill()
            process.wait()
            process.stdout.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Faults(unittest.TestCase):
    def job(self, *args, **kwargs):
        job = Job(*args, **kwargs)
        self.addCleanup(job.end)
        return job

    def store(self):
        host = subprocess.Popen([WORKER, "store"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def end():
            host.stdin.close()
            host.wait(timeout=HANG)
            host.stdout.close()

        self.addCleanup(end)
        return f"127.0.0.1:{host.stdout.readline().strip()}"

    def expect_blame(self, job, victim, words, recovered=True):
        said = {rank: job.outcome(rank) for rank in job.ranks if rank != victim}
        for rank, out in said.items():
            self.assertIn("failed peer lost: all-reduce of conv1, ", out, f"rank {rank}")
            self.assertIn(words, out, f"rank {rank}")
            if recovered:
                self.assertIn(f"recovered {job.size - 1}", out, f"rank {rank}")

    def test_a_killed_rank_is_named_by_all_others_who_then_go_on(self):
        job = self.job(4, environment={"TIMEOUT_MS": "100000", "VICTIM": "2"})
        job.wait_until_running()
        started = time.monotonic()
        job.signal(2, signal.SIGKILL)
        self.expect_blame(job, 2, "rank 2 is lost: its process has ended")
        self.assertLess(time.monotonic() - started, 60, "a death must not need the timeout to be known")

    def test_a_stopped_rank_is_named_by_all_others_who_then_go_on(self):
        job = self.job(4, environment={"TIMEOUT_MS": "5000", "VICTIM": "1"})
        job.wait_until_running()
        job.signal(1, signal.SIGSTOP)
        self.expect_blame(job, 1, "rank 1 has not answered for 5000 ms; its process gives no sign")

    def test_a_rank_that_was_stopped_too_long_learns_that_it_was_given_up(self):
        job = self.job(3, environment={"TIMEOUT_MS": "4000"}, store=self.store())
        job.wait_until_running()
        job.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            self.assertIn("rank 2 has not answered", job.outcome(rank))
        job.signal(2, signal.SIGCONT)
        self.assertIn("failed peer lost", job.outcome(2))

    def test_the_loss_of_rank_0_with_its_store_is_told(self):
        job = self.job(4, environment={"TIMEOUT_MS": "100000"})
        job.wait_until_running()
        job.signal(0, signal.SIGKILL)
        self.expect_blame(job, 0, "rank 0 is lost", recovered=False)

    def test_with_a_launchers_store_even_rank_0_can_be_lost_and_the_others_go_on(self):
        job = self.job(4, environment={"TIMEOUT_MS": "100000", "VICTIM": "0"}, store=self.store())
        job.wait_until_running()
        job.signal(0, signal.SIGKILL)
        self.expect_blame(job, 0, "rank 0 is lost: its process has ended")

    def test_a_rank_that_leaves_is_named_at_once(self):
        job = self.job(4, roles={0: "loop", 1: "loop", 2: "loop", 3: "leave"}, environment={"TIMEOUT_MS": "100000"})
        self.expect_blame(job, 3, "rank 3 has left the group", recovered=False)

    def test_a_rank_that_lives_but_does_not_call_is_named_not_its_neighbour(self):
        job = self.job(4, roles={0: "loop", 1: "late", 2: "loop", 3: "loop"}, environment={"TIMEOUT_MS": "3000"})
        self.expect_blame(job, 1, "it has begun 3 calls, this is call 4", recovered=False)

    def test_ranks_that_disagree_on_sizes_are_told_both_before_a_byte_is_exchanged(self):
        job = self.job(4, roles={0: "loop", 1: "loop", 2: "odd", 3: "loop"}, environment={"TIMEOUT_MS": "100000"})
        for rank in range(4):
            out = job.outcome(rank)
            self.assertIn("failed invalid argument: all-reduce of conv1, ", out)
            self.assertIn("ranks disagree on call 1: ", out)
            self.assertIn("rank 2 runs all-reduce of conv1, 1000004 float32", out)
            self.assertIn("runs all-reduce of conv1, 1000003 float32", out)

    def test_ranks_that_disagree_on_the_world_are_told(self):
        job = self.job(3, odd_environment={1: {"WORLD_SIZE": "4"}}, store=self.store())
        for rank in range(3):
            out = job.outcome(rank)
            self.assertIn("failed invalid argument: world: ranks disagree: ", out)
            self.assertIn("rank 1 says gloo, 4 ranks, 1 per machine", out)

    def test_a_rank_that_does_not_come_is_named(self):
        job = self.job(4, roles={0: "loop", 1: "loop", 3: "loop"}, environment={"START_TIMEOUT_MS": "3000"}, store=self.store())
        for rank in (0, 1, 3):
            self.assertIn("world: rank 2 of 4 did not come to the store at 127.0.0.1:", job.outcome(rank))

    def test_a_master_port_that_the_launcher_holds_is_explained(self):
        with socket.socket() as agent:
            agent.bind(("127.0.0.1", 0))
            agent.listen()
            environment = {"MASTER_PORT": str(agent.getsockname()[1]), "START_TIMEOUT_MS": "1000"}
            job = self.job(2, environment=environment)
            for rank in range(2):
                self.assertIn("GRADPRESS_PORT", job.outcome(rank), f"rank {rank}")

    def test_processes_compute_what_threads_do(self):
        for size in (1, 2, 4):
            job = self.job(size, roles={rank: "verify" for rank in range(size)})
            for rank in range(size):
                self.assertIn("verified", job.outcome(rank))


if __name__ == "__main__":
    unittest.main()
