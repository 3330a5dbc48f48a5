#!/usr/bin/env python3
"""train_test.py GRADPRESS: `gradpress train` as a user meets it, among threads and among processes."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
CLUSTER = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/clusters/ethernet-1g.json"  # 4 machines
SMALL = ["--model", "mlp", "--layers", "1", "--hidden", "32", "--data", "synthetic", "--train-samples", "512",
         "--test-samples", "100", "--batch", "8"]
FIELDS = {"steps", "step_ms", "metric", "metric_value", "history", "wire_bytes_per_step", "plan", "model", "data",
          "workers", "backend", "link", "codec", "seed", "spans", "machine", "date", "command"}


def run(*arguments, code=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


class Train(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def test_help_names_every_model_and_an_example(self):
        said = run("train", "--help")
        for word in ("mlp", "lenet", "resnet20", "vgg11", "lstm-lm", "transformer-lm", "--plan", "Example:"):
            self.assertIn(word, said)

    def test_a_run_on_an_emulated_link_writes_what_reports_read(self):
        out = self.path / "run.json"
        said = run("train", *SMALL, "--workers", "2", "--link", "1gbit,50us", "--codec", "acpsgd:4", "--steps", "8",
                   "--eval-every", "4", "--log-every", "2", "--json", str(out))
        self.assertIn("loss", said)
        self.assertIn("samples/s", said)
        self.assertNotIn("\r", said)  # no bar where there is no terminal
        self.assertLessEqual(max(map(len, said.splitlines())), 120)
        row = json.loads(out.read_text())
        self.assertLessEqual(FIELDS, set(row), FIELDS - set(row))
        self.assertEqual((row["steps"], row["workers"], row["backend"]), (8, 2, "local"))
        self.assertEqual((row["link"], row["codec"], row["metric"]), ("1gbit,50us", "acpsgd:4", "accuracy"))
        self.assertEqual([point["step"] for point in row["history"]], [2, 4, 6, 8])
        self.assertEqual([point["metric_value"] is None for point in row["history"]], [True, False, True, False])
        self.assertGreater(row["wire_bytes_per_step"], 0)
        self.assertTrue(row["spans"])
        self.assertEqual({"lane", "action", "tensor", "start_us", "end_us"}, set(row["spans"][0]))
        self.assertTrue(all(span["start_us"] <= span["end_us"] for span in row["spans"]))

    def test_momentum_correction_is_announced_and_can_be_turned_off(self):
        self.assertIn("momentum correction is on", run("train", *SMALL, "--steps", "2", "--codec", "dgc:0.01"))
        self.assertNotIn("momentum correction is on", run("train", *SMALL, "--steps", "2", "--codec", "dgc:0.01",
                                                          "--momentum-correction", "off"))

    def test_threads_and_processes_train_the_same_bits(self):
        prints = []
        for start in (["train"], ["launch", "-n", "2", "--local-size", "1", "--", PROGRAM, "train", "--backend", "gloo"]):
            out = self.path / f"{len(prints)}.json"
            run(*start, *SMALL, "--workers", "2", "--steps", "4", "--codec", "efsign", "--json", str(out))
            prints.append(json.loads(out.read_text())["fingerprint"])
        self.assertEqual(*prints)

    def test_a_recorded_trace_is_planned_with_and_the_plan_runs(self):
        trace, plan, out = (str(self.path / name) for name in ("trace.json", "plan.json", "run.json"))
        run("train", *SMALL, "--steps", "4", "--workers", "4", "--record-trace", trace)
        names = [tensor["name"] for tensor in json.loads(pathlib.Path(trace).read_text())["tensors"]]
        self.assertEqual(set(names), {"hidden1.weight", "hidden1.bias", "output.weight", "output.bias"})
        run("plan", "--trace", trace, "--cluster", str(CLUSTER), "--codec", "efsign", "--strategy", "all", "--json", plan)
        run("train", *SMALL, "--steps", "4", "--workers", "4", "--plan", plan, "--json", out)
        row = json.loads(pathlib.Path(out).read_text())
        self.assertEqual(row["running"], "plan")
        self.assertGreater(row["compressed_share"], 0.9)
        self.assertIn("world", run("train", *SMALL, "--steps", "4", "--workers", "2", "--plan", plan, code=2))

    def test_wrong_input_is_told(self):
        said = run("train", "--data", f"fashion-mnist:{self.path}", code=2)
        self.assertIn("dataset-fashion-mnist", said)
        self.assertIn("vgg11", run("train", "--model", "alexnet", "--data", "synthetic", code=2))
        self.assertIn("nonsense", run("train", *SMALL, "--codec", "nonsense", code=2))
        run("train", "--no-such-flag", code=2)
        run("train", *SMALL, "--batch", "0", code=2)

    def test_an_interrupt_ends_it_and_leaves_a_checkpoint(self):
        saved = self.path / "saved"
        process = subprocess.Popen([PROGRAM, "train", *SMALL, "--steps", "1000000", "--log-every", "1", "--save", str(saved)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        for line in process.stdout:  # it trains
            if "loss" in line:
                break
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("interrupted after step", said)
        self.assertEqual(sorted(file.name for file in saved.iterdir()), [f"rank-{i}.pt" for i in range(4)])
        deadline = time.monotonic() + 30
        while alive(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(alive(process.pid))


if __name__ == "__main__":
    unittest.main()
