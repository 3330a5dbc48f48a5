"""gradpress codecs: every codec with its text, and the same as JSON."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60, check=False)


class Codecs(unittest.TestCase):
    def test_lists_what_the_other_verbs_take(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "codecs.json"
            done = run("codecs", "--json", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            found = {codec["name"]: codec for codec in json.loads(out.read_text())}
        self.assertEqual(found["topk"]["family"], "sparse")
        self.assertEqual(found["topk"]["value"], "ratio")
        self.assertIn({"name": "index", "words": ["plain", "rice"]}, found["topk"]["keys"])
        self.assertEqual(found["acpsgd"]["cycle"], 2)
        for name, codec in found.items():
            self.assertIn(codec["usage"], done.stdout)
            self.assertTrue(codec["example"].startswith(name), codec)

    def test_a_file_that_cannot_be_written_is_named(self):
        done = run("codecs", "--json", "/nowhere/codecs.json")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/codecs.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
