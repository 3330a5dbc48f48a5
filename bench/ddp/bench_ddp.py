#!/usr/bin/env python3
"""Steps under DDP: gradpress beside plain DDP and torch's own hooks.

    bench_ddp.py BUILD [--parts replay-1gbit,training-1gbit] [--models lstm,vgg11] [--settings ddp,acpsgd:4]
                       [--seconds 4] [--acpsgd FOLDER] [--json F] [--markdown F]

A part is MODE-RATE[-WORLD]: replay or training, between shaped hosts of that rate; the rate `none` is the bare loopback
device without hosts. All settings of a model are measured in the same processes, in blocks of steps that take turns; a
number is the median of all steps, each the slowest rank's, with the smallest and largest.
--json keeps what other runs left there, so that the table can be measured in pieces; --markdown puts the table of all
that is in it between the file's marks. Shaped hosts need root (tests/multihost/hosts.py): without, it says so.
"""
import argparse
import datetime
import glob
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

import judge

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "multihost"))
import hosts as shaped  # noqa: E402

PUBLISHED = "published-acpsgd"
SETTINGS = f"compute,ddp,torch-fp16,torch-powersgd,{PUBLISHED},efsign,topk:0.01,dgc:0.01,sign,acpsgd:4,auto"
# What auto may choose from here, whatever its default is: so its speed stays comparable.
AUTO_CODECS = ["acpsgd:4", "efsign", "dgc:0.01"]
# What a bucket may cost in the hook.
MOST_HAND_OVER_US = 30.0
# The whole table: what each part measures.
PARTS = {"replay-1gbit": SETTINGS, "replay-100mbit": SETTINGS, "training-1gbit": SETTINGS,
         "replay-none": "ddp,auto", "training-none": "ddp,auto", "training-none-1": "ddp,auto,acpsgd:4"}
MODELS = "resnet18,vgg11,lstm,transformer"
WORLD = 4
OURS = ("acpsgd:4", "auto")
# What auto is held to: beside the best of what it may choose from between hosts, beside plain DDP on the loopback device.
# With one worker DDP's speed must lie within the interval.
LEAST_OF_BEST, LEAST_OF_DDP = 0.95, 0.98
BEGIN, END = "<!-- ddp: begin -->", "<!-- ddp: end -->"


def torch_python():
    """Debian's torch belongs to Debian's python3, which need not be the first in PATH."""
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    shaped.skip("no python3 here has torch: install python3-torch")
    return None


def openblas():
    """torch's powerSGD_hook multiplies matrices: with the reference BLAS, which Debian links when there is no other, it
    would lose for the wrong reason."""
    given = os.environ.get("GRADPRESS_BENCH_BLAS")
    found = [given] if given else sorted(glob.glob("/usr/lib/*/openblas-*"))
    return found[0] if found else ""


def variables(build):
    python_path = f"{pathlib.Path(build).resolve()}/python"
    libraries = os.pathsep.join(filter(None, [openblas(), os.environ.get("LD_LIBRARY_PATH")]))
    return {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", **({"LD_LIBRARY_PATH": libraries} if libraries else {})}


class Loopback:
    """Ranks of this machine, with nothing between them."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def run(self, command, world, timeout_s, of_all):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  preexec_fn=shaped.die_with_parent,
                                  env={**os.environ, **of_all, "RANK": str(rank), "WORLD_SIZE": str(world),
                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                       "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(world)]
        return [(rank.communicate(timeout=timeout_s)[0], rank.returncode) for rank in ranks]


class Between(shaped.Hosts):
    """Ranks on shaped hosts, one on each."""

    def run(self, command, world, timeout_s, of_all):
        workers, _ = super().run(command, timeout_s=timeout_s, variables=of_all)
        return [(worker.text, worker.process.returncode) for worker in workers]


def measure(place, part, model, args, python):
    settings = (args.settings or PARTS.get(part.name, SETTINGS)).split(",")
    if PUBLISHED in settings and not args.acpsgd:
        print(f"{model:12} {PUBLISHED:16} not measured: --acpsgd FOLDER names the published code (lzhangbv/acpsgd)", flush=True)
        settings.remove(PUBLISHED)
    asked = {"model": model, "mode": part.mode, "rate_mbit": part.rate_mbit, "seconds": args.seconds, "settings": settings,
             "acpsgd": str(args.acpsgd.resolve()) if args.acpsgd else "", "auto_codecs": AUTO_CODECS}
    ends = place.run([python, str(ROOT / "bench/ddp/worker.py"), json.dumps(asked)], part.world, args.timeout,
                     variables(args.build))
    lines = [line for line in ends[0][0].splitlines() if line.startswith("RESULT ")]
    if any(code for _, code in ends) or not lines:
        for rank, (text, code) in enumerate(ends):
            print(f"-- rank {rank}, exit code {code}\n{text}", file=sys.stderr)
        sys.exit(1)
    result = json.loads(lines[0][len("RESULT "):])
    return {**result, "part": part.name, "world": part.world, "date": str(datetime.date.today())}


class Part:
    def __init__(self, name):
        words = name.split("-")
        if len(words) not in (2, 3) or words[0] not in ("replay", "training"):
            sys.exit(f'bench ddp: part "{name}": wanted MODE-RATE[-WORLD], as replay-1gbit or training-none-1')
        self.name, self.mode, self.rate = name, words[0], words[1]
        self.world = int(words[2]) if len(words) == 3 else WORLD
        self.rate_mbit = 0.0 if self.rate == "none" else shaped.bits_per_second(self.rate) / 1e6

    def place(self):
        return Loopback() if self.rate == "none" else Between(self.world, self.rate)


# -- what is said about it --------------------------------------------------------------------------------------------

def blocks_of(result):
    return {row["setting"]: row["blocks_ms"] for row in result["rows"]}


def median_of(blocks):
    return statistics.median(time for block in blocks for time in block)


def judgement(result):
    """(our setting, the other, the judge's words) for the limits of a few percent."""
    blocks = blocks_of(result)
    others = [setting for setting in blocks if setting in ("ddp", *AUTO_CODECS)]
    if "auto" not in blocks or not others:
        return []
    if result["world"] == 1:
        return [(ours, "ddp", judge.alike(blocks[ours], blocks["ddp"])) for ours in OURS if ours in blocks]
    if result["rate_mbit"] == 0.0:
        return [("auto", "ddp", judge.verdict(blocks["auto"], blocks["ddp"], LEAST_OF_DDP))]
    best = min(others, key=lambda setting: median_of(blocks[setting]))
    return [("auto", best, judge.verdict(blocks["auto"], blocks[best], LEAST_OF_BEST))]


def sentence(ours, other, words):
    return (f"{ours} beside {other}: {words['ratio']:.3f} x its speed [{words['low']:.3f}, {words['high']:.3f}], "
            f"{words['pairs']} pairs, wanted {words['least']}: {words['verdict']}")


def show(result):
    medians = {setting: median_of(blocks) for setting, blocks in blocks_of(result).items()}
    for row in result["rows"]:
        median = medians[row["setting"]]
        times = [time for block in row["blocks_ms"] for time in block]
        against = [f"{medians[other] / median:6.2f} x {other}" for other in ("ddp", "torch-powersgd", PUBLISHED)
                   if other in medians]
        print(f"{result['model']:12} {row['setting']:16} {median:9.1f} ms  [{min(times):.1f}, {max(times):.1f}] of "
              f"{len(times)}  {'  '.join(against)}  {row['running']}", flush=True)
    for line in hand_overs(result):
        print(f"{result['model']:12} {line}", flush=True)
    for ours, other, words in judgement(result):
        print(f"{result['model']:12} {sentence(ours, other, words)}", flush=True)


def hand_overs(result):
    """What a bucket costs in the hook."""
    rows = [(row["setting"], row.get("hand_over_us")) for row in result["rows"]]
    return [f"{setting}: a bucket takes {us['median']:.1f} us in the hook (nine of ten below {us['p90']:.1f}), wanted "
            f"{MOST_HAND_OVER_US:.0f}: {'held' if us['median'] <= MOST_HAND_OVER_US else 'missed'}"
            for setting, us in rows if us is not None and setting == "acpsgd:4"]


def gain(result, other):
    """How many times faster acpsgd:4 is."""
    blocks = blocks_of(result)
    return median_of(blocks[other]) / median_of(blocks["acpsgd:4"]) if {other, "acpsgd:4"} <= set(blocks) else None


def averages(results):
    lines = []
    for other in ("ddp", "torch-powersgd", PUBLISHED):
        gains = [gain(result, other) for result in results]
        if gains and None not in gains:
            lines.append(f"acpsgd:4 beside {other}: {statistics.fmean(gains):.2f} x on average, least {min(gains):.2f} x")
    return lines


def of_part(results, part):
    found = {result["model"]: result for result in results if result["part"] == part}
    return [found[model] for model in MODELS.split(",") if model in found]


def markdown_of(results, machine):
    lines = []
    for part in dict.fromkeys([*PARTS, *(result["part"] for result in results)]):
        here = of_part(results, part)
        if not here:
            continue
        settings = list(dict.fromkeys(row["setting"] for result in here for row in result["rows"]))
        dates = " to ".join(sorted({result["date"] for result in here})[::len({r["date"] for r in here}) - 1 or 1])
        lines += [f"**{title(part)}** `./run bench ddp --parts {part}`, {dates}, {machine}", "",
                  "| model | " + " | ".join(f"`{setting}`" for setting in settings) + " |",
                  "|---" * (len(settings) + 1) + "|"]
        for result in here:
            blocks = blocks_of(result)
            cells = [cell(blocks[setting]) if setting in blocks else "" for setting in settings]
            lines.append(f"| {result['model']}, {result['megabytes']:.0f} MB | " + " | ".join(cells) + " |")
        lines.append("")
        lines += [f"- {line}" for line in averages(here)]
        lines += [f"- {result['model']}: {line}" for result in here for line in hand_overs(result)]
        lines += [f"- {result['model']}: {sentence(*words)}" for result in here for words in judgement(result)]
        lines.append("")
    return "\n".join(lines).rstrip()


def cell(blocks):
    times = [time for block in blocks for time in block]
    return f"{statistics.median(times):.0f} ({min(times):.0f}–{max(times):.0f})"


def title(part):
    part = Part(part)
    mode = "Replay" if part.mode == "replay" else "Real training"
    if part.world == 1:
        return f"{mode}, one worker."
    where = "the loopback device" if part.rate == "none" else f"{part.world} hosts at {part.rate}"
    return f"{mode}, {where}."


def machine_name():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} cores"


def put_between_marks(file, text):
    whole = file.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"bench ddp: {file}: wanted the lines {BEGIN} and {END}, between which the table goes")
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--settings", help="instead of those of the part")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measured steps per setting, about")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--acpsgd", metavar="FOLDER", type=pathlib.Path, help="of the published code: a row more")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--markdown", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--only-write", action="store_true", help="measure nothing, write what --json has")
    args = parser.parse_args()
    python = torch_python()
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    for part in [] if args.only_write else map(Part, args.parts.split(",")):
        print(f"{title(part.name)} {machine_name()}, {datetime.date.today()}, BLAS: "
              f"{openblas() or 'whatever libblas.so.3 is'}", flush=True)
        try:
            with part.place() as place:
                for model in args.models.split(","):
                    result = measure(place, part, model, args, python)
                    show(result)
                    results = [one for one in results if (one["part"], one["model"]) != (part.name, model)] + [result]
                    if args.json:
                        args.json.write_text(json.dumps(results, indent=1))
        except (shaped.CannotMakeHosts, PermissionError) as error:
            shaped.skip(error)
        for line in averages(of_part(results, part.name)):
            print(line, flush=True)
    if args.markdown:
        put_between_marks(args.markdown, markdown_of(results, machine_name()))


if __name__ == "__main__":
    main()
