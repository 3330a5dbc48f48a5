#!/usr/bin/env python3
"""parity.py GRADPRESS [--only REGEX] [--seeds 3] [--out FOLDER] [--markdown FILE]: does compressed training end where
uncompressed training ends?

4 workers as threads, the same seed and the same steps for every codec. Each run is a file of its own in FOLDER; runs whose
file is there are not run again, so that the table can be made in pieces and --only can run a part of it. The
last thing is the table over all runs that are there; --markdown puts it between the marks of that file.

A difference is that of the means over the seeds of both: points of accuracy, or per cent of perplexity.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

from marks import put_between_marks

HERE = pathlib.Path(__file__).resolve().parent
TEXT = "text of --text"
IMAGE_CODECS = ("none", "acpsgd:4", "powersgd:4", "efsign", "dgc:0.001", "redsync:0.001", "redsync-q:0.001", "sign")
TEXT_CODECS = ("none", "acpsgd:4", "powersgd:4", "dgc:0.01", "redsync:0.01")
# Every other run begins with this part of its steps uncompressed.
WARM_UP = 0.25
WITHOUT_WARM_UP = {"none", "sign"}
# Votes have magnitude 1, whatever the gradient's: the rate is the change of a parameter per step.
OTHER_RATES = {"sign": "0.0003"}
# `least`: tensors with fewer elements travel raw, for every codec alike. That is RedSync's own rule (8192): of a layer with 1280 elements,
# 0.001 is one or two.
TASKS = {
    "lenet": {
        "title": "Fashion-MNIST, all of it, lenet (4 channels, 128 hidden)", "epochs": 3, "least": 8192,
        "flags": ["--model", "lenet", "--width", "4", "--hidden", "128", "--batch", "16"], "lr": "0.01",
        "codecs": IMAGE_CODECS, "limit": 0.5, "reported": {"sign", "redsync-q:0.001"}},
    "vgg11": {
        "title": "Fashion-MNIST, 12 000 samples, narrow vgg11 (4 channels, 512 hidden)", "epochs": 5, "least": 8192,
        "flags": ["--model", "vgg11", "--width", "4", "--hidden", "512", "--batch", "16", "--train-samples", "12000"], "lr": "0.02",
        "codecs": IMAGE_CODECS, "limit": 0.5, "reported": {"sign", "redsync-q:0.001"}},
    # Plain SGD with clipping, as recurrent language models (RedSync's too) are trained.
    "lstm": {
        "title": "text, bytes, lstm-lm (96 hidden), 20 000 samples of 16", "epochs": 2, "least": 1024,
        "flags": ["--model", "lstm-lm", "--hidden", "96", "--data", TEXT, "--sequence", "16", "--batch", "16",
                  "--clip", "1", "--train-samples", "20000", "--momentum", "0"], "lr": "4",
        "codecs": TEXT_CODECS, "limit": 2.0, "reported": set()},
}
# The timeout is for machines that freeze a run while they measure another.
SHARED_FLAGS = ["--schedule", "cosine", "--lr-warmup", "50", "--log-every", "50", "--workers", "4", "--eval-every", "1000000", "--timeout", "3600"]


def file_of(args, task, codec, seed):
    return args.out / f"{task}-{codec.replace(':', '_')}-{seed}.json"


def run_one(args, task, codec, seed):
    out = file_of(args, task, codec, seed)
    about = TASKS[task]
    flags = [args.text_source if flag == TEXT else flag for flag in about["flags"]]
    if codec not in WITHOUT_WARM_UP:
        flags += ["--dense-epochs", str(WARM_UP * about["epochs"])]
    command = [args.program, "train", *flags, *SHARED_FLAGS, "--epochs", str(about["epochs"]), "--codec", codec, "--least-elements",
               str(about["least"]), "--seed", str(seed),
               "--lr", OTHER_RATES.get(codec, about["lr"]), "--json", str(out)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}parity: exit {done.returncode}")
    row = json.loads(out.read_text())
    print(f"{task} {codec} seed {seed}: {row['metric']} {row['metric_value']:.2f}, {row['wire_bytes_per_step']:.0f} bytes/step, "
          f"{time.monotonic() - started:.0f} s", flush=True)


def rows_of(args, task):
    """One row per codec of which a run is there, with its runs by seed."""
    found = []
    for codec in TASKS[task]["codecs"]:
        runs = {seed: json.loads(path.read_text()) for seed in range(1, args.seeds + 1)
                if (path := file_of(args, task, codec, seed)).exists()}
        if runs:
            found.append({"codec": codec, "runs": runs, "value": statistics.mean(run["metric_value"] for run in runs.values())})
    return found


def gap_of(row, base):
    """Against the uncompressed runs of the same seeds: points, or per cent; None where there are none."""
    seeds = [seed for seed in row["runs"] if seed in base["runs"]]
    if not seeds:
        return None
    own, other = (statistics.mean(one["runs"][seed]["metric_value"] for seed in seeds) for one in (row, base))
    return own - other if row["runs"][seeds[0]]["metric"] == "accuracy" else 100 * (1 - own / other)


def verdict(task, row, base):
    gap = gap_of(row, base) if base and row["codec"] != "none" else None
    if gap is None:
        return "", ""
    unit = "points" if next(iter(row["runs"].values()))["metric"] == "accuracy" else "%"
    if row["codec"] in TASKS[task]["reported"]:
        return f"{gap:+.2f} {unit}", "reported"
    return f"{gap:+.2f} {unit}", "held" if gap >= -TASKS[task]["limit"] else f"MISSED ({TASKS[task]['limit']} allowed)"


def table(args, task):
    rows = rows_of(args, task)
    if not rows:
        return []
    base = next((row for row in rows if row["codec"] == "none"), None)
    first = next(iter(rows[0]["runs"].values()))
    most = max(len(row["runs"]) for row in rows)
    lines = [f"**{TASKS[task]['title']}**: {TASKS[task]['epochs']} epochs, {first['steps']} steps of 4 workers, {first['parameters']} parameters; "
             f"mean of {most} seeds (least to most); {first['machine']}, {first['date']}, "
             f"`./run bench train --text FILE`. Tensors with less than {TASKS[task]['least']} elements travel raw.", "",
             f"| codec | {first['metric']} | against none | within the limit | bytes/step after warm-up | compressed elements | warm-up |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        values = [run["metric_value"] for run in row["runs"].values()]
        run = next(iter(row["runs"].values()))
        gap, held = verdict(task, row, base)
        fewer = f", {len(values)} of the seeds" if len(values) < most else ""
        lines.append(f"| `{row['codec']}` | {row['value']:.2f} ({min(values):.2f} to {max(values):.2f}{fewer}) | {gap} | {held} | "
                     f"{run['wire_bytes_per_step']:.0f} | {100 * run['compressed_share']:.1f} % | "
                     f"{100 * run['warm_steps'] / run['steps']:.0f} % |")
    return lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent.parent / "build/parity", help="folder of the runs")
    parser.add_argument("--only", default="", help="rows whose `task codec seed` contains this regular expression")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--text", type=pathlib.Path, help="the text of lstm-lm; its rows are left out without")
    parser.add_argument("--markdown", type=pathlib.Path, help="also put the table between this file's marks")
    parser.add_argument("--list", action="store_true", help="only say which runs are missing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.text_source = f"text:{args.text}"
    if not args.text:
        print("rows of lstm are left out: no --text FILE was given")
    for seed in range(1, args.seeds + 1):
        for task, about in TASKS.items():
            for codec in about["codecs"]:
                name = f"{task} {codec} {seed}"
                if (task == "lstm" and not args.text) or not re.search(args.only, name) or file_of(args, task, codec, seed).exists():
                    continue
                if args.list:
                    print(name)
                else:
                    run_one(args, task, codec, seed)
    text = "\n".join(line for task in TASKS for line in table(args, task))
    print(text)
    if args.markdown:
        put_between_marks(args.markdown, "parity", text + "\n")


if __name__ == "__main__":
    main()
