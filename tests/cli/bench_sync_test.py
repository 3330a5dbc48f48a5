"""gradpress bench sync: fields, formats, byte counts and exit codes. Never its timings."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


def run(*args):
    return subprocess.run([PROGRAM, "bench", "sync", *args], capture_output=True, text=True, timeout=300)


class BenchSync(unittest.TestCase):
    def rows(self, *args):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "bench.json"
            done = run(*args, "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 100, line)
            return json.loads(out.read_text())["rows"]

    def test_rows_have_every_documented_field_and_no_wrong_element(self):
        rows = self.rows("-b", "64K", "-n", "2", "-w", "1", "--tensors", "3", "--link", "1gbit", "--codec",
                         "efsign,topk:0.1,fp16,acpsgd:2,powersgd:2")
        self.assertEqual([row["codec"] for row in rows],
                         ["none", "efsign", "topk:0.1", "fp16", "acpsgd:2", "powersgd:2"])
        for row in rows:
            for field in ("name", "backend", "workers", "bytes", "median_us", "min_us", "wire_bytes", "vs_bound"):
                self.assertIn(field, row)
            self.assertEqual(row["wrong"], 0)

    def test_bytes_are_payloads_and_frames(self):
        rows = self.rows("-b", "40000", "-n", "1", "-w", "0", "--workers", "4", "--codec", "efsign", "--option",
                         "allgather")
        self.assertEqual(rows[0]["wire_bytes"], 2 * 3 * 40000 // 4)
        self.assertEqual(rows[1]["wire_bytes"], 3 * (32 + 4 + 4 * ((10000 + 31) // 32)))

    def test_an_option_can_be_written_out(self):
        text = "Comp@host > gather@flat > Decomp@host > broadcast@flat"
        rows = self.rows("-b", "4K", "-n", "1", "-w", "0", "--codec", "int8", "--option", text)
        self.assertEqual(rows[1]["option"], text)

    def test_wrong_input_is_explained_and_exits_2(self):
        for args, words in [
            (["--codec", "smoke"], ["smoke"]),
            (["--option", "sideways"], ["sideways", "divisible"]),
            (["--codec", "topk:0.1", "--option", "allreduce"], ["cannot be added up"]),
            (["--link", "fast"], ["fast", "gbit"]),
            (["--backend", "smoke"], ["smoke"]),
            (["--workers", "3", "--local-size", "2"], ["3", "2"]),
        ]:
            done = run("-b", "4K", "-n", "1", *args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stdout} {done.stderr}")
            for word in words:
                self.assertIn(word, done.stderr, args)


if __name__ == "__main__":
    unittest.main()
