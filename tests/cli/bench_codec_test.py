"""gradpress bench codec: fields, formats and exit codes. Never its timings."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
CODEC_COSTS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/codec_costs.py"


def run(*args):
    return subprocess.run([PROGRAM, "bench", "codec", *args], capture_output=True, text=True, timeout=300)


class BenchCodec(unittest.TestCase):
    def test_every_codec_has_every_documented_field(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "bench.json"
            done = run("-b", "64K", "-n", "2", "-w", "1", "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(out.read_text())
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir()], ["bench.json"])
        self.assertGreater(result["memcpy_gbs"], 0)
        names = [row["codec"] for row in result["codecs"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertIn("efsign", names)
        for row in result["codecs"]:
            self.assertEqual(row["elements"], 16384)
            self.assertGreater(row["encode_vs_memcpy"], 0)
            self.assertGreater(row["decode_vs_memcpy"], 0)
            self.assertGreater(row["first_encode_vs_memcpy"], 0)
            self.assertGreater(row["payload_bytes"], 0)
            self.assertGreater(row["memcpy_us"], 0)
            self.assertEqual(row["rounds"], 2 if row["codec"].startswith("powersgd") else 1)
            self.assertTrue(row["target"])
            self.assertIn(row["codec"], done.stdout)
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)

    def test_cluster_files_take_the_least_time_of_one_encode(self):
        def bench(encode):
            row = {"elements": 1024, "memcpy_us": 2.0, "decode_vs_memcpy": 0.5}
            return {"format": "gradpress-bench-codec-1", "machine": "m", "target": "t", "date": "d", "codecs": [
                {**row, "codec": "efsign", "rounds": 1, "encode_vs_memcpy": encode},
                {**row, "codec": "powersgd:4", "rounds": 2, "encode_vs_memcpy": encode}]}
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder) / "cluster.json"
            cluster.write_text("{}")
            files = []
            for encode in (3.0, 4.0):
                files += ["--bench", f"{folder}/{encode}.json"]
                pathlib.Path(files[-1]).write_text(json.dumps(bench(encode)))
            subprocess.run([sys.executable, CODEC_COSTS, *files, cluster], check=True, capture_output=True)
            costs = json.loads(cluster.read_text())["codec_costs"]
        self.assertEqual(costs["efsign"]["host"], [{"elements": 1024, "encode_us": 6.0, "decode_us": 1.0}])
        self.assertEqual(costs["powersgd:4"]["host"], [{"elements": 1024, "encode_us": 3.0, "decode_us": 1.0}])

    def test_efsign_sends_a_bit_an_element_and_one_scale(self):
        done = run("-b", "64K", "-n", "1", "--codec", "efsign")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = next(line for line in done.stdout.splitlines() if line.startswith("efsign"))
        self.assertIn(str(16384 // 8 + 4), row.split())

    def test_a_sweep_prints_a_row_per_size(self):
        done = run("-b", "4K", "-e", "64K", "-f", "4", "-n", "1", "--codec", "none")
        sizes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("none")]
        self.assertEqual(sizes, ["1024", "4096", "16384"])

    def test_the_pinned_target_is_the_one_that_ran(self):
        done = run("-b", "4K", "-n", "1", "--codec", "none", "--target", "no-such-target")
        self.assertEqual(done.returncode, 2)
        known = done.stderr.strip().rsplit("runs ", 1)[1].split(", ")
        done = run("-b", "4K", "-n", "1", "--codec", "none", "--target", known[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"kernels {known[-1]}", done.stdout)

    def test_wrong_input_is_explained_and_exits_2(self):
        for args, words in [
            (["--codec", "topkk:0.1"], ["topkk", "known are", "efsign"]),
            (["--codec", "topk:0"], ["ratio", "above 0", '"0"']),
            (["-b", "many"], ["many", "64M"]),
            (["-n", "0"], ["-n"]),
            (["--no-such-flag"], ["--no-such-flag"]),
        ]:
            done = run(*args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stdout} {done.stderr}")
            for word in words:
                self.assertIn(word, done.stderr, args)

    def test_an_unwritable_json_file_is_explained(self):
        done = run("-b", "4K", "-n", "1", "--codec", "none", "--json", "/no/such/folder/out.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such/folder/out.json", done.stderr)

    def test_help_shows_an_example(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("Example:", done.stdout)


if __name__ == "__main__":
    unittest.main()
