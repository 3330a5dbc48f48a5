#!/usr/bin/env python3
"""train_test.py GRADPRESS [openmpi;mpich]: `gradpress train` as a user meets it, among threads and among processes."""
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
# Of the MPI implementations that the build has modules for; none under sanitizers.
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpiexec.hydra"]}
IMPLEMENTATIONS = sys.argv.pop(1).split(";") if len(sys.argv) > 1 and not sys.argv[1].startswith(("-", "Train")) else []
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

    def fingerprint(self, start):
        out = self.path / "run.json"
        command = [*start, *SMALL, "--workers", "2", "--local-size", "1", "--steps", "4", "--codec", "efsign", "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        self.assertEqual(done.stdout.count("4/4"), 1, "rank 0 alone prints\n" + done.stdout)
        return json.loads(out.read_text())["fingerprint"]

    def test_threads_and_processes_train_the_same_bits(self):
        launch = [PROGRAM, "launch", "-n", "2", "--local-size", "1", "--", PROGRAM, "train", "--backend", "gloo"]
        self.assertEqual(self.fingerprint([PROGRAM, "train"]), self.fingerprint(launch))

    def test_processes_of_mpi_train_the_same_bits(self):
        if not any(IMPLEMENTATIONS):
            self.skipTest("built without MPI, or with a sanitizer")
        wanted = self.fingerprint([PROGRAM, "train"])
        for name in IMPLEMENTATIONS:
            start = [*LAUNCHERS[name], "-n", "2", PROGRAM, "train", "--backend", "mpi"]
            self.assertEqual(self.fingerprint(start), wanted, name)

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

    def test_recorded_gradients_are_replayed(self):
        trace, gradients, out = (str(self.path / name) for name in ("t.json", "gradients.bin", "replay.json"))
        run("train", *SMALL, "--steps", "6", "--workers", "2", "--record-trace", trace, "--record-gradients", gradients, "--gradient-steps", "3")
        replay = ["replay", "--workers", "2", "-n", "4", "--codec", "topk:0.05"]
        run(*replay, "--trace", trace, "--gradients", gradients, "--json", out)
        row = json.loads(pathlib.Path(out).read_text())
        self.assertEqual(row["wire_bytes"], row["promised_bytes"])
        other = json.loads(pathlib.Path(trace).read_text())
        other["tensors"][0]["name"] = "somebody.else"
        changed = self.path / "changed.json"
        changed.write_text(json.dumps(other))
        self.assertIn("somebody.else", run(*replay, "--trace", str(changed), "--gradients", gradients, code=2))
        other = json.loads(pathlib.Path(trace).read_text())
        other["tensors"][0].update(shape=[7], elements=7)
        changed.write_text(json.dumps(other))
        self.assertIn(other["tensors"][0]["name"], run(*replay, "--trace", str(changed), "--gradients", gradients, code=2))

    def test_residuals_follow_the_learning_rate(self):
        def losses(*flags):
            out = str(self.path / "rate.json")
            run("train", *SMALL, "--steps", "12", "--workers", "2", "--codec", "efsign", "--log-every", "1", "--json", out, *flags)
            return [point["loss"] for point in json.loads(pathlib.Path(out).read_text())["history"]]

        self.assertEqual(losses("--rate-correction"), losses(), "a constant rate corrects nothing")
        falling = ["--schedule", "step", "--decay-at", "0.5", "--decay", "0.1"]
        corrected, plain = losses(*falling, "--rate-correction"), losses(*falling)
        self.assertEqual(corrected[:7], plain[:7])
        self.assertNotEqual(corrected[7:], plain[7:])
        said = run("train", *SMALL, "--codec", "topk:0.1", "--momentum", "0.9", "--rate-correction", code=2)
        self.assertIn("--momentum-correction off", said)
        self.assertIn("sgd", run("train", *SMALL, "--optimizer", "adamw", "--rate-correction", code=2))

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
