"""Collectives between hosts with real kernels' networks between them: results, bytes and cut cables.

usage: multihost_test.py PROGRAM [BACKEND ...]     backends: gloo, openmpi; others that this build has not are refused

In every run the results are checked by the program itself, and the bytes that the group says it sent between machines
agree with what the kernel counted at the hosts' cards within 3 %. The kernel's bytes are taken without headers: it
counts those of Ethernet, IP and TCP (66 B a packet, acknowledgements included), the group counts payloads. The
backend's own messages (the store, Gloo's and MPI's headers) are in the kernel's figure: they are what the 3 % are for.
"""
import json
import pathlib
import re
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import hosts as shaped  # noqa: E402  (a module of this folder)

PROGRAM = sys.argv.pop(1)
BACKENDS = [sys.argv.pop(1) for _ in sys.argv[1:]]
TOLERANCE = 0.03
# Against hangs alone: a machine under load must not fail.
LIMIT_S = 150


class Multihost(unittest.TestCase):
    def bench(self, net, backend, workers, *args):
        """Runs the bench on all hosts; returns what it wrote and what each card counted."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "bench.json"
            command = [PROGRAM, "bench", "collective", "--json", str(out), *args]
            net.workers = []
            before = net.counters()
            if backend == "gloo":
                net.start([*command, "--backend", "gloo"], workers)
            else:
                net.start_on(0, net.openmpi([*command, "--backend", "mpi"], workers))
            codes = net.wait(LIMIT_S)
            counted = [after - start for after, start in zip(net.counters(), before)]
            said = "\n".join(worker.text for worker in net.workers)
            self.assertEqual(set(codes), {0}, said)
            return json.loads(out.read_text()), counted

    def check_bytes(self, found, counted, workers, what):
        for host, card in enumerate(counted):
            promised = sum(one["inter"] for one in found["sent_by_rank"][host * workers:(host + 1) * workers])
            payload = card.sent_payload()
            self.assertGreater(promised, 10**6, "too little to compare")
            gap = payload / promised - 1
            print(f"{what}, host {host}: group {promised} B, kernel {payload} B without headers ({gap:+.2%}), "
                  f"{card.sent_bytes} B with", flush=True)
            self.assertLess(abs(gap), TOLERANCE, f"{what}, host {host}")

    def check(self, host_count, workers, rate, size):
        for backend in BACKENDS:
            what = f"{backend}, {host_count} hosts of {workers}, {rate}"
            with self.subTest(what), shaped.Hosts(host_count, rate) as net:
                found, counted = self.bench(net, backend, workers, "--op", "allreduce,reduce-scatter,allgather,alltoall",
                                            "-b", size, "-n", "2", "-w", "0")
                for row in found["rows"]:
                    self.assertEqual(row["wrong"], 0)
                    self.assertEqual(row["workers"], host_count * workers)
                self.check_bytes(found, counted, workers, what)

    def test_four_hosts_at_100_mbit(self):
        self.check(4, 1, "100mbit", "512K")

    def test_four_hosts_at_1_gbit(self):
        self.check(4, 1, "1gbit", "2M")

    def test_two_hosts_of_two_at_100_mbit(self):
        self.check(2, 2, "100mbit", "512K")

    def test_two_hosts_of_two_at_1_gbit(self):
        self.check(2, 2, "1gbit", "2M")

    @unittest.skipUnless("gloo" in BACKENDS, "this build has no Gloo")
    def test_a_replay_sends_what_it_promises_and_puts_all_ranks_on_one_clock(self):
        with tempfile.TemporaryDirectory() as folder, shaped.Hosts(2, "1gbit") as net:
            trace, out = pathlib.Path(folder) / "trace.json", pathlib.Path(folder) / "replay.json"
            events = pathlib.Path(folder) / "events.json"
            trace.write_text(json.dumps({"format": "gradpress-trace-1", "model": "small", "forward_us": 500, "tensors": [
                {"name": f"layer{i}", "shape": [64, 96], "elements": 6144, "ready_gap_us": 300} for i in range(6)]}))
            workers, _ = net.run([PROGRAM, "replay", "--backend", "gloo", "--trace", str(trace), "--codec", "efsign", "-n", "3",
                                  "-w", "1", "--json", str(out), "--perfetto", str(events)], 2, LIMIT_S)
            for worker in workers:
                self.assertEqual(worker.process.returncode, 0, worker.text)
            found = json.loads(out.read_text())
            self.assertGreater(found["wire_bytes"], 0)
            self.assertEqual(found["wire_bytes"], found["promised_bytes"])
            # These hosts are one kernel's and have one clock: the truth is 0.
            for row in found["ranks"]:
                self.assertLessEqual(abs(row["clock_offset_us"]), row["clock_error_us"], row)
            shown = {event["pid"] for event in json.loads(events.read_text())["traceEvents"] if event["ph"] == "X"}
            self.assertEqual(shown, {1, 2, 3, 4})

    @unittest.skipUnless("gloo" in BACKENDS, "this build has no Gloo")
    def test_all_others_name_the_host_whose_cable_was_pulled(self):
        deadline_s = 5
        with shaped.Hosts(4, "100mbit") as net:
            net.start([PROGRAM, "bench", "collective", "--backend", "gloo", "-b", "1M", "-n", "100000", "--timeout",
                       str(deadline_s)])
            start = time.monotonic()
            while net.counters()[2].sent_payload() < 5 * 10**6:  # in the middle of the collectives
                self.assertLess(time.monotonic() - start, LIMIT_S, "the collectives did not begin")
                time.sleep(0.05)
            net.cut(2)
            codes = net.wait(LIMIT_S, grace_s=LIMIT_S)
            for worker, code in zip(net.workers, codes):
                print(f"rank {worker.rank}, exit {code}: {worker.lines[-1] if worker.lines else ''}", flush=True)
                self.assertEqual(code, 3, f"rank {worker.rank}: {worker.text}")
                if worker.rank != 2:
                    self.assertRegex(worker.text, r"\brank 2\b")
                    blamed = re.findall(r"rank (\d) (?:has|is|does)", worker.text)
                    self.assertEqual(set(blamed) - {"2"}, set(), worker.text)


if __name__ == "__main__":
    try:
        with shaped.Hosts(1, "1gbit"):
            pass
    except (shaped.CannotMakeHosts, PermissionError) as error:
        shaped.skip(error)
    unittest.main(verbosity=2)
