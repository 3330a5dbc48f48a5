"""gradpress options, plan, simulate, report: fields, files, widths and exit codes."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
CLUSTERS = pathlib.Path(__file__).parents[2] / "examples" / "clusters"
CLUSTER = str(CLUSTERS / "ethernet-10g.json")
MODEL = ["--model", "resnet50", "--tflops", "15", "--cluster", CLUSTER]


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300)


class Planner(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return str(pathlib.Path(self.folder.name) / name)

    def test_options_counts_the_published_tree(self):
        for places, total in [("device,host", 4341), ("device", 174)]:
            done = run("options", "--places", places, "--json", self.path("o.json"))
            self.assertEqual(done.returncode, 0, done.stderr)
            tree = json.loads(pathlib.Path(self.path("o.json")).read_text())
            self.assertEqual((tree["total"], tree["raw"]), (total, 9))
            self.assertEqual(len(set(tree["options"])), total)
            self.assertEqual(tree["subtrees"]["T4"], 152 if total == 4341 else 19)

    def test_costs_of_ranks_that_nobody_measured_come_with_a_warning(self):
        for rank, warnings in (4, 0), (256, 1):
            done = run("plan", *MODEL, "--tree", "extended", "--codec", f"acpsgd:{rank}", "--json", self.path("p.json"))
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 100, line)
            self.assertEqual(done.stdout.count("warning: acpsgd:256"), warnings, done.stdout)
            found = json.loads(pathlib.Path(self.path("p.json")).read_text())["warnings"]
            self.assertEqual(len(found), warnings, found)

    def test_plan_has_every_documented_field(self):
        done = run("plan", *MODEL, "--codec", "efsign,dgc:0.01", "--json", self.path("p.json"), "--perfetto",
                   self.path("t.json"), "--save-trace", self.path("trace.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)
        self.assertIn("estimate", done.stdout)
        plan = json.loads(pathlib.Path(self.path("p.json")).read_text())
        for field in ("model", "cluster", "codec", "strategy", "iteration_us", "planning_us", "exposed_comm_us",
                      "exposed_codec_us", "verdict", "tensors"):
            self.assertIn(field, plan)
        self.assertLessEqual({"name", "shape", "elements", "codec", "option", "bucket"}, set(plan["tensors"][0]))
        self.assertGreater(plan["planning_cpu_us"], 0)
        self.assertGreaterEqual(plan["iteration_us"], plan["bound_us"])
        events = json.loads(pathlib.Path(self.path("t.json")).read_text())["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        end = max(e["ts"] + e["dur"] for e in spans)
        self.assertAlmostEqual(end, plan["iteration_us"], delta=1e-6 * end)
        done = run("simulate", "--trace", self.path("trace.json"), "--cluster", CLUSTER, "--plan", self.path("p.json"),
                   "--strategies", "none", "--json", self.path("s.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        point = json.loads(pathlib.Path(self.path("s.json")).read_text())["points"][0]
        self.assertAlmostEqual(point["values"]["plan"], plan["iteration_us"], delta=1e-3)

    def test_a_plan_for_another_world_is_refused_with_what_differs(self):
        done = run("plan", *MODEL, "--codec", "efsign", "--json", self.path("p.json"), "--save-trace", self.path("t.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        cluster = json.loads(pathlib.Path(CLUSTER).read_text())
        cluster["machines"] = 16
        pathlib.Path(self.path("c.json")).write_text(json.dumps(cluster))
        done = run("simulate", "--trace", self.path("t.json"), "--cluster", self.path("c.json"), "--plan", self.path("p.json"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("machines: wanted 16: the plan is for another world", done.stderr)

    def test_two_axes_give_regions(self):
        page = self.path("r.html")
        done = run("simulate", *MODEL, "--codec", "efsign", "--fusion", "none", "--strategies", "none,hipress,best",
                   "--machines", "2..16", "--gbps", "1,10,100", "--json", self.path("r.json"), "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)
        regions = json.loads(pathlib.Path(self.path("r.json")).read_text())
        self.assertEqual((regions["x"], regions["y"]), ("machines", "gbps"))
        self.assertEqual(len(regions["points"]), 4 * 3)
        for point in regions["points"]:
            self.assertLessEqual(point["values"][point["best"]], min(point["values"].values()) * (1 + 1e-9))
        self.assertEqual([p["x"] for p in regions["points"][:4]], [2, 4, 8, 16])
        self.look(page, "#regions rect", least=12, hover="ms")
        done = run("simulate", *MODEL, "--codec", "efsign", "--machines", "1..2", "--gbps", "1,2", "--latency", "1,2")
        self.assertEqual(done.returncode, 2)
        self.assertIn("at most two axes", done.stderr)

    def test_wrong_input_is_explained_and_exits_2(self):
        for args, words in [
            (["plan", *MODEL, "--codec", "gzip"], ["gzip", "known are"]),
            (["plan", *MODEL, "--codec", "efsign", "--strategy", "luck"], ["luck", "espresso"]),
            (["plan", *MODEL, "--codec", "terngrad"], ["no costs", "terngrad"]),
            (["plan", *MODEL, "--codec", "acpsgd:4"], ["--tree extended"]),
            (["plan", "--cluster", CLUSTER, "--codec", "efsign"], ["--trace", "--model"]),
            (["plan", "--trace", "/nowhere.json", "--cluster", CLUSTER, "--codec", "efsign"], ["/nowhere.json"]),
            (["options", "--forbid", "gpu"], ["gpu", "alltoall"]),
            (["simulate", *MODEL, "--codec", "efsign", "--machines", "0..4"], ["--machines"]),
            (["report", "--table", "strategies", "--traces", self.folder.name, "--clusters", "x"], ["no .json"]),
        ]:
            done = run(*args)
            self.assertEqual(done.returncode, 2, (args, done.stdout, done.stderr))
            for word in words:
                self.assertIn(word, done.stderr, args)

    def test_help_has_an_example(self):
        for verb in ("options", "plan", "simulate", "report"):
            done = run(verb, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Example:", done.stdout)

    def look(self, page, shapes, least, hover):
        """Opens a page in a browser: no error, at least so many shapes, and the first answers the pointer."""
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        text = pathlib.Path(page).read_text()
        self.assertNotIn("http://", text.replace("http://www.w3.org/2000/svg", ""))
        self.assertNotIn("https://", text)
        if chromium is None:
            self.assertNotIn("CI", os.environ, "CI must look at the pages: chromium is missing")
            self.skipTest("no chromium here: the page was written and not looked at")
        probe = """<script>addEventListener('error',e=>document.title='ERROR '+e.message);</script>"""
        after = f"""<script>
const r=document.querySelector('{shapes}');r.dispatchEvent(new MouseEvent('mousemove',{{clientX:9,clientY:9}}));
const t=document.getElementById('tip');
document.title=document.title.startsWith('ERROR')?document.title:
 'OK '+document.querySelectorAll('{shapes}').length+' '+t.style.display+' '+t.textContent.includes('{hover}');
</script></body>"""
        pathlib.Path(page).write_text(text.replace("<body>", "<body>" + probe).replace("</body>", after))
        seen = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                               f"--user-data-dir={self.folder.name}/profile", "file://" + page],
                              capture_output=True, text=True, timeout=120)
        title = seen.stdout.split("<title>")[1].split("</title>")[0]
        self.assertTrue(title.startswith("OK "), title)
        count, shown, right = title.split()[1:4]
        self.assertGreaterEqual(int(count), least)
        self.assertEqual((shown, right), ("block", "true"), title)

    def test_the_page_renders_and_answers_the_pointer(self):
        page = self.path("p.html")
        done = run("plan", *MODEL, "--codec", "efsign", "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.look(page, "#lanes rect", least=100, hover="µs")

    def test_a_sweep_gives_lines(self):
        page = self.path("s.html")
        done = run("simulate", *MODEL, "--codec", "efsign", "--strategies", "none,hipress", "--gbps", "1..8", "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.look(page, "#plot circle", least=8, hover="ms")


if __name__ == "__main__":
    unittest.main()
