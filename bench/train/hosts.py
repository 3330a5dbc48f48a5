#!/usr/bin/env python3
"""hosts.py GRADPRESS [--task vgg11|lstm] [--rate 100mbit] [--hosts 4] [--codecs none,acpsgd:16,powersgd:16,efsign,dgc:0.01,auto]
[--part time|steps|table] [--out FOLDER] [--markdown FILE]: time to the result of uncompressed training, on hosts with shaped links.

Uncompressed training runs for a fixed number of steps; the result is the best that it reaches in them with every seed. The others
have a quarter more steps, with a schedule of that length, and end when they reach it. Steps are counted unshaped, among threads; the time of a step is measured between the hosts, over Gloo. The
product is the time; both factors are in the table. `auto` decides by time alone, so it is given the codecs that reach the result with every seed (the accuracy policy
that its user would set); of those whose steps were not counted, all. Its time of a step is that after it has decided, and its steps are counted with
the plan that it had then (--write-plan, --plan FILE).

Each run is a file of its own in FOLDER; runs whose file is there are not run again, so that --part time can be measured on an
idle machine and --part steps be counted on a busy one. --markdown puts the table between the marks of that file.
Needs root (network namespaces) and iproute2.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/multihost"))
import hosts as shaped  # noqa: E402  (a module of the tests)
from marks import put_between_marks  # noqa: E402

TASKS = {
    "vgg11": {
        "title": "Fashion-MNIST, 12 000 samples, vgg11 (8 channels, 1024 hidden)",
        "flags": ["--model", "vgg11", "--width", "8", "--hidden", "1024", "--batch", "8", "--lr", "0.01", "--lr-warmup", "40",
                  "--train-samples", "12000"],
        "steps": 400, "counted": ["--schedule", "cosine", "--eval-every", "20", "--test-samples", "1000"]},
    "lstm": {
        "title": "text, words, lstm-lm (256 hidden, 10 000 words)",
        "flags": ["--model", "lstm-lm", "--hidden", "256", "--words", "--vocab", "10000", "--sequence", "16", "--batch", "2", "--clip", "1",
                  "--lr", "0.5", "--lr-warmup", "50"],
        "steps": 600, "counted": ["--schedule", "cosine", "--eval-every", "20", "--test-samples", "400"]},
}
# ACP-SGD against uncompressed: the paper's average. Against Power-SGD: this project's own goal.
WANTED = {"none": 4.06, "powersgd": 1.2}
# What a median of steps repeats to on this kind of hosts.
NOISE = 1.03


def file_of(args, kind, codec, suffix=".json"):
    return args.out / f"{args.task}-{args.hosts}-{args.rate}-{kind}-{codec.replace(':', '_')}{suffix}"


def finished(command, code, text):
    if code != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{text}\nhosts: exit {code}")


def task_flags(args):
    return [*TASKS[args.task]["flags"], "--log-every", "10", "--timeout", str(args.timeout),
            *(["--data", f"text:{args.text}"] if args.task == "lstm" else [])]


def measure_step(args, net, codec):
    out = file_of(args, "time", codec)
    singles = ",".join(single for single in args.codecs
                       if single.split(":")[0] not in ("none", "auto", "powersgd") and None not in reached_by(args, single))
    chosen = ["--codec", codec]
    if codec == "auto":
        chosen = ["--plan", "auto", "--auto-codecs", singles, "--write-plan", str(file_of(args, "plan", codec))]
    command = [args.program, "train", *task_flags(args), *chosen, "--backend", "gloo", "--steps",
               str(args.auto_steps if codec == "auto" else args.timed_steps), "--eval-every", "1000000", "--test-samples", "40", "--json", str(out)]
    net.workers = []
    net.start(command)
    codes = net.wait(600)
    finished(command, max(map(abs, codes)), "\n".join(worker.text for worker in net.workers))
    run = json.loads(out.read_text())
    print(f"{codec}: {run['step_ms']:.1f} ms a step ({run['running']})", flush=True)


def count_steps(args, codec, seed):
    """A run among threads, on a link without limits."""
    limits = ["--steps", str(TASKS[args.task]["steps"])]
    if codec != args.codecs[0]:
        limits = ["--steps", str(TASKS[args.task]["steps"] * 5 // 4), "--time-to", str(abs(target_of(args)))]
    out = file_of(args, f"steps{seed}", codec)
    chosen = ["--plan", str(file_of(args, "plan", codec))] if codec == "auto" else ["--codec", codec]
    command = [args.program, "train", *task_flags(args), *TASKS[args.task]["counted"], *limits, *chosen, "--workers", str(args.hosts), "--seed",
               str(seed), "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    finished(command, done.returncode, done.stdout + done.stderr)
    print(f"{codec} seed {seed}: {json.loads(out.read_text())['metric_value']:.2f}", flush=True)


def measure(args, codecs):
    missing = [codec for codec in codecs if not file_of(args, "time", codec).exists()]
    if not missing:
        return
    try:
        with shaped.Hosts(args.hosts, args.rate) as net:
            for codec in missing:
                measure_step(args, net, codec)
    except (shaped.CannotMakeHosts, PermissionError) as error:
        shaped.skip(error)


def count(args, codecs):
    for codec in codecs:  # the first for all seeds: it says what the others run to
        for seed in range(1, args.seeds + 1):
            if not file_of(args, f"steps{seed}", codec).exists():
                count_steps(args, codec, seed)


def counted_runs(args, codec):
    """Those that are there."""
    return [evaluations(json.loads(path.read_text())) for seed in range(1, args.seeds + 1)
            if (path := file_of(args, f"steps{seed}", codec)).exists()]


def target_of(args):
    """What every uncompressed run reached; larger is better."""
    return min(max(value for _, value in run) for run in counted_runs(args, args.codecs[0]))


def reached_by(args, codec):
    """The step at which each counted run reached the target, None where it did not."""
    if not counted_runs(args, args.codecs[0]):
        return []
    target = target_of(args)
    return [next((step for step, value in run if value >= target), None) for run in counted_runs(args, codec)]


def evaluations(run):
    """(step, value), larger is better."""
    sign = 1 if run["metric"] == "accuracy" else -1
    return [(point["step"], sign * point["metric_value"]) for point in run["history"] if point["metric_value"] is not None]


def rows_of(args):
    timed = {codec: json.loads(file_of(args, "time", codec).read_text()) for codec in args.codecs}
    target = target_of(args)
    rows = []
    for codec in args.codecs:
        reached = reached_by(args, codec)
        steps = statistics.median(reached) if reached and None not in reached else None
        run = timed[codec]
        rows.append({"codec": codec, "step_ms": run["step_ms"], "steps": steps, "seconds": steps * run["step_ms"] / 1e3 if steps else None,
                     "wire_bytes_per_step": run["wire_bytes_per_step"], "running": run["running"], "reached": reached})
    return abs(target), rows


def verdicts(rows):
    """Sentences: what was wanted, what it is, and whether it holds."""
    seconds = {row["codec"]: row["seconds"] for row in rows}
    reached = {row["codec"]: row["reached"] for row in rows}
    acp = next((codec for codec in seconds if codec.startswith("acpsgd")), None)

    def why_not(codec):
        return f"MISSED, {codec} did not reach the result" if reached[codec] else f"not judged, the steps of {codec} were not counted"

    for other in seconds:
        wanted = WANTED.get(other.split(":")[0])
        if not acp or not wanted:
            continue
        missing = next((codec for codec in (acp, other) if not seconds[codec]), None)
        if missing:
            yield f"`{acp}` against `{other}`: {why_not(missing)} ({wanted} x wanted)"
            continue
        ratio = seconds[other] / seconds[acp]
        yield f"`{acp}` against `{other}`: {ratio:.2f} x, {'held' if ratio >= wanted else 'MISSED'} ({wanted} x wanted)"
    uncounted = [codec for codec in seconds if not reached[codec]]
    if "auto" in seconds and uncounted:
        yield f"`auto` against the best single codec: not judged, the steps of {', '.join(uncounted)} were not counted"
        return
    singles = {codec: value for codec, value in seconds.items() if codec != "auto" and value}
    if "auto" in seconds and singles:
        best = min(singles, key=singles.get)
        if not seconds["auto"]:
            yield f"`auto`: {why_not('auto')}"
            return
        ratio = singles[best] / seconds["auto"]
        yield (f"`auto` against the best single codec, `{best}`: {ratio:.2f} x, "
               f"{'held' if ratio * NOISE >= 1 else 'MISSED'} (1 x wanted, {NOISE - 1:.0%} of noise allowed)")


def table(args):
    target, rows = rows_of(args)
    first = json.loads(file_of(args, "time", args.codecs[0]).read_text())
    unit = "% accuracy" if first["metric"] == "accuracy" else "perplexity"
    lines = [f"**{TASKS[args.task]['title']}**: {first['parameters']} parameters, {args.hosts} hosts as network namespaces of one machine, {args.rate}, Gloo; "
             f"to {target:.2f} {unit}. Steps: median of {args.seeds} seeds, counted unshaped; time of a step: median, between the hosts; "
             f"seconds: the product. {first['machine']}, {first['date']}, `./run bench hosts --task {args.task}`.", "",
             "| codec | ms/step | steps (each seed) | seconds | speed-up | per step | bytes/step |", "|---|---|---|---|---|---|---|"]
    base = rows[0]
    for row in rows:
        per_step = f"{base['step_ms'] / row['step_ms']:.2f} x"
        each = ", ".join(str(step or "never") for step in row["reached"]) or "not counted"
        seconds = f"{row['seconds']:.1f}" if row["seconds"] else "-"
        speed_up = f"{base['seconds'] / row['seconds']:.2f} x" if row["seconds"] and base["seconds"] else "-"
        lines.append(f"| `{row['codec']}` | {row['step_ms']:.1f} | {row['steps'] or '-'} ({each}) | {seconds} | {speed_up} | {per_step} | "
                     f"{row['wire_bytes_per_step']:.0f} |")
    lines.append("")
    lines += [f"- {sentence}." for sentence in verdicts(rows)]
    lines += [f"- `auto` ran {row['running']}." for row in rows if row["codec"] == "auto"]
    return rows, target, "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--task", choices=TASKS, default="vgg11")
    parser.add_argument("--text", type=pathlib.Path, help="the text of lstm")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--codecs", default="none,acpsgd:16,powersgd:16,efsign,dgc:0.01,auto", help="the first is what the others are compared with")
    parser.add_argument("--timed-steps", type=int, default=50)
    parser.add_argument("--auto-steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=600, help="seconds that a peer may be silent")
    parser.add_argument("--part", choices=("time", "steps", "table"), help="only this")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent.parent / "build/hosts", help="folder of the runs")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, help="also put the table between this file's marks")
    args = parser.parse_args()
    args.codecs = args.codecs.split(",")
    if args.task == "lstm" and not args.text:
        sys.exit("hosts: --task lstm: wanted --text FILE")
    args.out.mkdir(parents=True, exist_ok=True)
    for codecs in ([codec for codec in args.codecs if codec != "auto"], [codec for codec in args.codecs if codec == "auto"]):
        if args.part in (None, "time"):
            measure(args, codecs)
        if args.part in (None, "steps"):
            count(args, codecs)
    if args.part in (None, "table"):
        rows, target, text = table(args)
        print(text)
        if args.json:
            args.json.write_text(json.dumps({"hosts": args.hosts, "rate": args.rate, "target": target, "rows": rows}, indent=1))
        if args.markdown:
            put_between_marks(args.markdown, f"hosts {args.task}", text)


if __name__ == "__main__":
    main()
