"""The backend mpi as a user meets it, under the launcher of one implementation: bench collective with --backend mpi.

usage: mpi_test.py PROGRAM openmpi|mpich
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
IMPLEMENTATION = sys.argv.pop(1)
# Against hangs alone.
LIMIT_S = 100
# `recover`: leave the other ranks alone when one ends early; else the launcher kills them before they can say why.
LAUNCHERS = {
    "openmpi": {"start": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
                "recover": ["--enable-recovery"]},
    "mpich": {"start": ["mpiexec.hydra"], "recover": ["-disable-auto-cleanup"]},
}
LAUNCHER = LAUNCHERS[IMPLEMENTATION]
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


def launched(processes, *command, recover=False):
    return [*LAUNCHER["start"], *(LAUNCHER["recover"] if recover else []), "-n", str(processes), *command]


def bench(*args):
    return [PROGRAM, "bench", "collective", "--backend", "mpi", *args]


def run(command, env=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **(env or {})})


class Mpi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_every_collective_is_right_and_counts_its_bytes(self):
        out = self.folder / "bench.json"
        done = run(launched(4, *bench("--op", "all", "-b", "48K", "-n", "3", "-w", "1", "--local-size", "2", "--json",
                                      str(out))))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(out.read_text())
        self.assertGreaterEqual(len(found["rows"]), 7)
        for row in found["rows"]:
            self.assertEqual((row["backend"], row["workers"], row["local_size"], row["wrong"]), ("mpi", 4, 2, 0))
        self.assertEqual(found["rows"][0]["wire_bytes"], 2 * 3 * (48 << 10) // 4)
        self.assertEqual(len(found["sent_by_rank"]), 4)
        self.assertEqual(done.stdout.count("# gradpress bench collective"), 1, "rank 0 alone prints")

    def check_that_all_others_name_rank_2_after(self, number):
        """Runs collectives without end on 4 ranks and sends rank 2 a signal in the middle of them. Every rank leaves its
        error and its exit code in files. Hydra tells of a rank's end by SIGUSR1, which would end the shell."""
        script = (f"trap '' USR1; {PROGRAM} bench collective --backend mpi --timeout 4 -b 1M -n 100000 2>{self.folder}/{RANK}.err & "
                  f"echo $! >{self.folder}/{RANK}.pid; wait $!; echo $? >{self.folder}/{RANK}.code; exit 0")
        job = subprocess.Popen(launched(4, "sh", "-c", script, recover=True), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + LIMIT_S
        pid_file = self.folder / "2.pid"
        while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        victim = int(pid_file.read_text())
        try:
            time.sleep(3)
            os.kill(victim, number)
            others = [self.folder / f"{rank}.code" for rank in (0, 1, 3)]
            while not all(path.exists() and path.read_text() for path in others) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertTrue(all(path.exists() for path in others), "a rank hangs")
            for rank in (0, 1, 3):
                said = (self.folder / f"{rank}.err").read_text()
                self.assertIn("rank 2", said, f"rank {rank}")
                self.assertRegex(said, "all-reduce of bench|barrier")
                self.assertEqual((self.folder / f"{rank}.code").read_text().strip(), "3", said)
        finally:
            if number == signal.SIGSTOP:
                os.kill(victim, signal.SIGKILL)
            try:
                job.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()

    def test_a_rank_that_stops_is_named_by_all_others(self):
        self.check_that_all_others_name_rank_2_after(signal.SIGSTOP)

    @unittest.skipIf(IMPLEMENTATION == "mpich",
                     "UCX, which Debian's MPICH runs on, ends a process itself when one that it shares memory with dies")
    def test_a_rank_that_is_killed_is_named_by_all_others(self):
        self.check_that_all_others_name_rank_2_after(signal.SIGKILL)

    def test_ranks_that_call_different_things_are_told(self):
        script = f"size=64K; [ {RANK} = 1 ] && size=32K; exec {' '.join(bench('--timeout', '4', '-n', '1'))} -b $size"
        done = run(launched(3, "sh", "-c", script))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ranks disagree", done.stderr)
        self.assertTrue(re.search("rank 1", done.stderr), done.stderr)

    def test_without_a_launcher_it_says_what_to_do(self):
        done = run(bench())
        self.assertEqual(done.returncode, 2)
        self.assertIn("mpirun", done.stderr)

    def test_a_module_that_is_none_is_an_error(self):
        done = run(bench(), env={"GRADPRESS_MPI_MODULE": "/no/such/module.so"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such/module.so", done.stderr)
        text = self.folder / "text.so"
        text.write_text("no library")
        done = run(bench(), env={"GRADPRESS_MPI_MODULE": str(text)})
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot open", done.stderr)

    def test_a_wrong_number_of_workers_is_refused(self):
        done = run(launched(2, *bench("--workers", "3", "-n", "1")))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--workers 3", done.stderr)
        self.assertIn("2", done.stderr)


if __name__ == "__main__":
    unittest.main()
