"""gradpress bench collective: fields, formats, byte counts and exit codes. Never its timings."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


def run(*args):
    return subprocess.run([PROGRAM, "bench", "collective", *args], capture_output=True, text=True, timeout=300)


class BenchCollective(unittest.TestCase):
    def test_every_collective_has_every_documented_field_and_no_wrong_element(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "bench.json"
            done = run("--op", "all", "-b", "64K", "-n", "2", "-w", "1", "--workers", "3", "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads(out.read_text())["rows"]
        self.assertGreaterEqual(len(rows), 7)
        for row in rows:
            for field in ("name", "backend", "workers", "bytes", "median_us", "min_us", "wire_bytes", "vs_bound"):
                self.assertIn(field, row)
            self.assertEqual(row["backend"], "local")
            self.assertEqual(row["workers"], 3)
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)

    def test_a_ring_all_reduce_sends_what_the_formula_says(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "bench.json"
            done = run("-b", "48K", "-n", "1", "-w", "0", "--workers", "4", "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            row = json.loads(out.read_text())["rows"][0]
        self.assertEqual(row["wire_bytes"], 2 * 3 * (48 << 10) // 4)

    def test_wrong_input_is_explained_and_exits_2(self):
        for args, words in [
            (["--link", "fast"], ["fast", "gbit"]),
            (["--op", "shuffle"], ["shuffle"]),
            (["--backend", "smoke"], ["smoke"]),
            (["--workers", "0"], ["--workers"]),
            (["--workers", "3", "--local-size", "2"], ["3", "2"]),
        ]:
            done = run("-b", "4K", "-n", "1", *args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stdout} {done.stderr}")
            for word in words:
                self.assertIn(word, done.stderr, args)


if __name__ == "__main__":
    unittest.main()
