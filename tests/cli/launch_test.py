"""gradpress launch: variables, output, exit codes, and that nothing it started outlives it."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
# Against hangs alone.
LIMIT_S = 120


def run(*args, env=None):
    return subprocess.run([PROGRAM, "launch", *args], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, **(env or {})})


def worker(code):
    """A worker in Python: the code sees `rank`."""
    return ["--", sys.executable, "-c", f"import os, signal, sys, time; rank = int(os.environ['RANK'])\n{code}"]


def alive(pid):
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Launch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def pid_files(self):
        return sorted(pathlib.Path(self.folder.name).glob("*.pid"))

    def pids(self, count):
        """The processes that wrote their number; a file appears whole, by renaming."""
        self.assertTrue(wait_until(lambda: len(self.pid_files()) == count), "the workers did not start")
        return [int(path.read_text()) for path in self.pid_files()]

    def write_pid(self, name="rank", pid="os.getpid()"):
        path = f"{self.folder.name}/' + str({name}) + '"
        return (f"open('{path}.new', 'w').write(str({pid}))\n"
                f"os.rename('{path}.new', '{path}.pid')\n")

    def test_every_rank_has_its_variables(self):
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
        done = run("-n", "6", "--local-size", "3",
                   *worker(f"print(*[os.environ[name] for name in {names}], os.environ['MASTER_PORT'])"),
                   env={"RANK": "77", "WORLD_SIZE": "78"})
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([line[:6] for line in lines],
                         [[str(r), "6", str(r % 3), "3", str(r // 3), "127.0.0.1"] for r in range(6)])
        self.assertEqual(len({line[6] for line in lines}), 1, "one port for all")
        self.assertTrue(1024 <= int(lines[0][6]) <= 65535, lines)

    def test_a_store_listens_where_the_workers_are_told(self):
        code = "import socket\nhost, port = os.environ['GRADPRESS_STORE'].split(':')\n" \
               "socket.create_connection((host, int(port)), 30).close()\nprint('met', port)"
        done = run("-n", "2", *worker(code))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(set(done.stdout.splitlines())), 1, "one store for all")

    def test_all_workers_share_one_machine_by_default(self):
        done = run("-n", "2", *worker("print(os.environ['LOCAL_WORLD_SIZE'], os.environ['GROUP_RANK'])"))
        self.assertEqual(done.stdout.split(), ["2", "0", "2", "0"])

    def test_lines_stay_whole_and_carry_the_rank_when_asked(self):
        code = "for i in range(200):\n  for part in ('a' * 50, str(rank) * 50, '\\n'):\n    sys.stdout.write(part); " \
               "sys.stdout.flush()\nsys.stderr.write(f'error of {rank}')"
        done = run("-n", "3", "--prefix", *worker(code))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 600)
        for line in lines:
            rank = line[1]
            self.assertEqual(line, f"[{rank}] " + "a" * 50 + rank * 50)
        self.assertEqual(sorted(done.stderr.splitlines()), [f"[{r}] error of {r}" for r in range(3)])

    def test_the_first_failure_gives_the_exit_code_and_is_named(self):
        done = run("-n", "3", *worker("sys.exit(0 if rank != 1 else 41)"))
        self.assertEqual(done.returncode, 41)
        self.assertIn("rank 1", done.stderr)
        self.assertIn("41", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        done = run("-n", "3", *worker("os.kill(os.getpid(), signal.SIGKILL) if rank == 2 else 0"))
        self.assertEqual(done.returncode, 128 + 9)
        self.assertIn("rank 2 was killed by signal 9", done.stderr)

    def test_the_others_may_report_before_they_are_ended(self):
        code = "if rank == 0: sys.exit(5)\ntime.sleep(1); print('lost rank 0', flush=True); sys.exit(3)"
        done = run("-n", "3", *worker(code))
        self.assertEqual(done.returncode, 5)
        self.assertEqual(done.stdout.splitlines(), ["lost rank 0"] * 2)

    def test_after_the_grace_the_others_are_ended(self):
        code = self.write_pid() + "sys.exit(5) if rank == 0 else time.sleep(1000)"
        done = run("-n", "3", "--grace", "0.2", *worker(code))
        self.assertEqual(done.returncode, 5)
        for pid in self.pids(3):
            self.assertFalse(alive(pid))

    def test_signals_are_passed_on(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for path in self.pid_files():
                path.unlink()
            code = ("def told(n, _):\n  print('told', n, flush=True); sys.exit(9)\n"
                    f"signal.signal({int(number)}, told)\n" + self.write_pid() + "time.sleep(1000)")
            job = subprocess.Popen([PROGRAM, "launch", "-n", "2", *worker(code)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            self.pids(2)
            job.send_signal(number)
            out, err = job.communicate(timeout=LIMIT_S)
            self.assertEqual(out.splitlines(), [f"told {int(number)}"] * 2)
            self.assertEqual(job.returncode, 9, err)

    def test_workers_that_do_not_listen_are_killed_by_a_second_signal(self):
        code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + self.write_pid() + "time.sleep(1000)"
        job = subprocess.Popen([PROGRAM, "launch", "-n", "2", *worker(code)], stderr=subprocess.PIPE, text=True)
        pids = self.pids(2)
        job.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertTrue(all(alive(pid) for pid in pids))
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 128 + 9, err)
        self.assertFalse(any(alive(pid) for pid in pids))

    def test_nothing_outlives_a_killed_launch(self):
        job = subprocess.Popen([PROGRAM, "launch", "-n", "3", *worker(self.write_pid() + "time.sleep(1000)")])
        pids = self.pids(3)
        job.kill()
        job.wait()
        self.assertTrue(wait_until(lambda: not any(alive(pid) for pid in pids)))

    def test_what_a_worker_leaves_behind_ends_with_it(self):
        code = "pid = os.fork()\nif pid == 0: time.sleep(1000)\n" + self.write_pid(pid="pid") + "os._exit(0)"
        done = run("-n", "2", *worker(code))
        self.assertEqual(done.returncode, 0, done.stderr)
        pids = self.pids(2)
        self.assertTrue(wait_until(lambda: not any(alive(pid) for pid in pids)))

    def test_wrong_use_is_explained_and_exits_2(self):
        for args, words in [
            (["-n", "2", "--", "/no/such/program"], ["/no/such/program", "No such file"]),
            (["-n", "3", "--local-size", "2", "--", "true"], ["3", "2"]),
            (["-n", "0", "--", "true"], ["--workers"]),
            (["--", "true"], ["--workers"]),
            (["-n", "2"], ["command"]),
        ]:
            done = run(*args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stdout} {done.stderr}")
            for word in words:
                self.assertIn(word, done.stderr, args)


if __name__ == "__main__":
    unittest.main()
