"""gradpress bench engine: fields, signs and exit codes. Never its timings."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


def run(*args):
    return subprocess.run([PROGRAM, "bench", "engine", *args], capture_output=True, text=True, timeout=300)


class BenchEngine(unittest.TestCase):
    def test_rows_have_every_field_and_sensible_figures(self):
        for codec in ("none", "efsign"):
            with tempfile.TemporaryDirectory() as folder:
                out = pathlib.Path(folder) / "bench.json"
                done = run("--workers", "2", "--tensors", "30", "-b", "400K", "-n", "3", "-w", "1", "--codec", codec, "--json", str(out))
                self.assertEqual(done.returncode, 0, done.stderr)
                for line in done.stdout.splitlines():
                    self.assertLessEqual(len(line), 100, line)
                self.assertIn("wrong elements: 0", done.stdout)
                report = json.loads(out.read_text())
            self.assertEqual(report["format"], "gradpress-bench-engine-1")
            self.assertTrue(report["date"] and report["machine"] and report["link"])
            plain, engine = report["rows"]
            self.assertEqual((plain["name"], engine["name"]), ("plain", "engine"))
            for row in report["rows"]:
                self.assertEqual((row["backend"], row["workers"], row["tensors"], row["codec"]), ("local", 2, 30, codec))
                # Whole elements of every tensor: at most one short of the bytes asked for.
                self.assertEqual(row["bytes"] % (4 * 30), 0)
                self.assertLessEqual(400_000 - 4 * 30, row["bytes"])
                self.assertGreater(row["min_us"], 0)
                self.assertLessEqual(row["min_us"], row["median_us"])
                self.assertLessEqual(row["median_us"], row["max_us"])
            self.assertEqual(plain["vs_plain"], 1)
            self.assertAlmostEqual(engine["vs_plain"], engine["median_us"] / plain["median_us"])

    def test_wrong_input_is_explained_and_exits_2(self):
        for args, word in [
            (["--codec", "smoke"], "smoke"),
            (["-b", "much"], "much"),
            (["--bucket", "some"], "some"),
            (["--workers", "3", "--local-size", "2"], "3"),
        ]:
            done = run("-n", "1", "--tensors", "2", *args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stdout} {done.stderr}")
            self.assertIn(word, done.stderr, args)


if __name__ == "__main__":
    unittest.main()
