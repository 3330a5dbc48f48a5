#!/usr/bin/env python3
"""replay_test.py GRADPRESS: profile writes a cluster that plan and replay take; replay's bytes are those promised."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
WORLD = ["--workers", "4", "--local-size", "2", "--link", "1gbit,50us"]


def run(*arguments, code=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def write_trace(path):
    tensors = [{"name": f"layer{i}.{kind}", "shape": shape, "elements": elements, "ready_gap_us": 300}
               for i in range(6)
               for kind, shape, elements in (("bias", [64], 64), ("weight", [64, 96], 6144))]
    path.write_text(json.dumps({"format": "gradpress-trace-1", "model": "small", "forward_us": 500, "tensors": tensors}))


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.trace = str(cls.path / "trace.json")
        write_trace(cls.path / "trace.json")
        cls.cluster = str(cls.path / "cluster.json")
        cls.said = run("profile", *WORLD, "--codecs", "efsign,topk:0.01,acpsgd:4", "-n", "3", "--out", cls.cluster)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_profile_writes_what_plan_reads(self):
        cluster = json.loads(pathlib.Path(self.cluster).read_text())
        self.assertEqual(cluster["format"], "gradpress-cluster-1")
        self.assertEqual((cluster["machines"], cluster["workers_per_machine"]), (2, 2))
        self.assertGreater(cluster["inter"]["collectives"]["allreduce"]["gbps"], 0)
        self.assertIn("fit_worst_error", cluster["intra"]["collectives"]["allgather"])
        # Larger sizes are left out where a codec takes long.
        sizes = [point["elements"] for point in cluster["codec_costs"]["efsign"]["host"]]
        self.assertTrue(sizes and sizes == sorted(set(sizes)), sizes)
        self.assertLessEqual(max(map(len, self.said.splitlines())), 100)
        run("plan", "--trace", self.trace, "--cluster", self.cluster, "--codec", "efsign")

    def test_replay_keeps_its_promises(self):
        for codec in ("none", "efsign", "topk:0.01", "acpsgd:4", "efsign,topk:0.01"):
            out = self.path / "replay.json"
            said = run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "--codec", codec,
                       "-n", "3", "-w", "1", "--json", str(out), "--html", str(self.path / "replay.html"))
            row = json.loads(out.read_text())
            self.assertEqual(row["wire_bytes"], row["promised_bytes"], codec)
            self.assertGreater(row["wire_bytes"], 0)
            self.assertGreater(row["predicted_us"], 0)
            # Backward and forward alone take as long.
            self.assertGreater(row["measured_us"], 500 + 12 * 300)
            self.assertLessEqual(row["measured_min_us"], row["measured_max_us"])
            self.assertLessEqual(max(map(len, said.splitlines())), 100)

    def test_every_tensor_has_a_predicted_and_a_measured_end(self):
        out = self.path / "tensors.json"
        run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "--codec", "efsign", "-n", "2", "--json", str(out))
        tensors = json.loads(out.read_text())["tensors"]
        self.assertEqual(len(tensors), 12)
        for number, row in enumerate(tensors):
            for times in (row["predicted"], row["measured"]):
                # Forward, and a gap for this tensor and each one before it.
                self.assertGreaterEqual(times["ready_us"], 500 + 300 * (number + 1) - 1)
                self.assertGreater(times["done_us"], times["ready_us"])
                self.assertGreater(times["comm_us"], 0)

    def test_the_trace_has_the_prediction_and_every_rank_on_one_clock(self):
        out, trace = self.path / "ranks.json", self.path / "trace-events.json"
        run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "--codec", "topk:0.01", "-n", "2",
            "--json", str(out), "--perfetto", str(trace))
        ranks = json.loads(out.read_text())["ranks"]
        self.assertEqual([row["rank"] for row in ranks], [0, 1, 2, 3])
        for row in ranks:
            # Threads share a clock, so the truth is 0: within what the estimate says of itself.
            self.assertLessEqual(abs(row["clock_offset_us"]), row["clock_error_us"])
        events = json.loads(trace.read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {0: "predicted (all workers alike)", **{i + 1: f"rank {i}, measured" for i in range(4)}})
        spans = [event for event in events if event["ph"] == "X"]
        for pid in names:
            mine = [event for event in spans if event["pid"] == pid]
            self.assertEqual(sum(event.get("cat") == "backward" for event in mine), 12)
            self.assertTrue(any("@" in event.get("cat", "") for event in mine), pid)
            self.assertTrue(all(event["dur"] >= 0 for event in mine))

    def test_without_a_codec_every_tensor_stays_raw(self):
        out = self.path / "raw.json"
        run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "-n", "2", "--json", str(out))
        row = json.loads(out.read_text())
        self.assertEqual({tensor["codec"] for tensor in row["tensors"]}, {"none"})
        self.assertGreater(row["predicted_us"], 0)
        self.assertEqual(row["wire_bytes"], row["promised_bytes"])

    def test_replay_plays_a_plan_file(self):
        plan = str(self.path / "plan.json")
        run("plan", "--trace", self.trace, "--cluster", self.cluster, "--codec", "efsign", "--json", plan)
        said = run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "--plan", plan, "-n", "2")
        self.assertIn("predicted", said)

    def test_both_steps_of_acpsgd_are_played_in_their_own_messages(self):
        path, out = self.path / "two_steps.json", self.path / "two_steps_replay.json"
        run("plan", "--trace", self.trace, "--cluster", self.cluster, "--codec", "acpsgd:4", "--tree", "extended", "--json", str(path))
        plan = json.loads(path.read_text())
        option = "Comp@device > allreduce@flat > Decomp@device"
        for number, tensor in enumerate(plan["tensors"]):
            matrix = len(tensor["shape"]) > 1
            tensor["codec"], tensor["option"] = ("acpsgd:4", option) if matrix else ("none", "allreduce@flat")
            # P: every tensor alone. Q: all matrices in one message, all vectors in another.
            tensor["bucket"] = tensor["bucket_p"] = number
            tensor["bucket_q"] = int(matrix)
        plan["order"] = plan["order_q"] = {"intra": [], "inter": []}
        path.write_text(json.dumps(plan))
        for steps, warmup, shown in (("4", "1", "P"), ("1", "1", "Q")):
            said = run("replay", *WORLD, "--trace", self.trace, "--cluster", self.cluster, "--plan", str(path),
                       "-n", steps, "-w", warmup, "--json", str(out))
            row = json.loads(out.read_text())
            kinds = {kind["kind"]: kind for kind in row["kinds"]}
            self.assertEqual({name: kind["messages"] for name, kind in kinds.items()}, {"P": 12, "Q": 2})
            self.assertEqual([name for name, kind in kinds.items() if kind["shown"]], [shown])
            # What is predicted is the mean over both, as the planner has it; every message has a latency.
            self.assertAlmostEqual(row["predicted_us"], (kinds["P"]["predicted_us"] + kinds["Q"]["predicted_us"]) / 2, delta=1)
            self.assertNotEqual(kinds["P"]["predicted_us"], kinds["Q"]["predicted_us"])
            self.assertEqual(row["wire_bytes"], row["promised_bytes"])
            self.assertIn(f"steps of {shown}", said)
            buckets = {tensor["bucket"] for tensor in row["tensors"]}
            self.assertEqual(len(buckets), kinds[shown]["messages"])
            for tensor in row["tensors"]:
                self.assertGreater(tensor["measured"]["comm_us"], 0)
                self.assertGreater(tensor["predicted"]["comm_us"], 0)

    def test_replay_without_a_cluster_and_in_a_row(self):
        said = run("replay", *WORLD, "--trace", self.trace, "--codec", "acpsgd:4", "-n", "2", "--serial")
        self.assertIn("measured", said)

    def test_wrong_input_is_told(self):
        said = run("replay", "--workers", "2", "--trace", self.trace, "--cluster", self.cluster, code=2)
        self.assertIn("workers", said)
        run("replay", *WORLD, "--trace", str(self.path / "absent.json"), code=2)
        run("replay", *WORLD, "--trace", self.trace, "--plan", "p.json", code=2)
        garbage = self.path / "gradients.bin"
        garbage.write_bytes(b"GPGRADS\0" + bytes(40))
        gradients = ["replay", *WORLD, "--trace", self.trace, "--gradients"]
        self.assertIn("version 0", run(*gradients, str(garbage), code=2))
        self.assertIn("absent", run(*gradients, str(self.path / "absent.bin"), code=2))
        self.assertIn("--shrink", run(*gradients, str(garbage), "--shrink", "2", code=2))
        run("profile", *WORLD, "--codecs", "nonsense", "--out", str(self.path / "c.json"), code=2)


if __name__ == "__main__":
    unittest.main()
