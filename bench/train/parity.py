#!/usr/bin/env python3
"""parity.py GRADPRESS [--only REGEX] [--seeds 3] [--out FOLDER] [--markdown FILE]: does compressed training end where
uncompressed training ends?

4 workers as threads, the same seed and the same steps for every codec. Each run is a file of its own in FOLDER; runs whose
file is there are not run again, so that the table can be made in pieces and --only can run a part of it. The
last thing is the table over all runs that are there; --markdown puts it between the marks of that file.

A difference counts against the mean over seeds of the uncompressed runs: points of accuracy, or per cent of perplexity.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TEXT = "text of --text"
# Every compressed run but those of the signs begins with a quarter of its steps uncompressed.
IMAGE_CODECS = ("none", "acpsgd:4", "powersgd:4", "efsign", "dgc:0.001", "redsync:0.001", "redsync-q:0.001", "sign")
TEXT_CODECS = ("none", "acpsgd:4", "powersgd:4", "dgc:0.01", "redsync:0.01")
WITHOUT_WARM_UP = {"none", "efsign", "sign"}
# Votes have magnitude 1, whatever the gradient's: the rate is the change of a parameter per step.
OTHER_RATES = {"sign": "0.0003"}
TASKS = {
    "lenet": {
        "title": "Fashion-MNIST, all of it, lenet (8 channels, 128 hidden)", "epochs": 3,
        "flags": ["--model", "lenet", "--width", "8", "--hidden", "128", "--batch", "16"], "lr": "0.01",
        "codecs": IMAGE_CODECS, "limit": 0.5, "reported": {"sign", "redsync-q:0.001"}},
    "vgg11": {
        "title": "Fashion-MNIST, 12 000 samples, narrow vgg11 (4 channels, 256 hidden)", "epochs": 5,
        "flags": ["--model", "vgg11", "--width", "4", "--hidden", "256", "--batch", "16", "--train-samples", "12000"], "lr": "0.02",
        "codecs": IMAGE_CODECS, "limit": 0.5, "reported": {"sign", "redsync-q:0.001"}},
    "lstm": {
        "title": "text, bytes, lstm-lm (96 hidden), 20 000 samples of 16", "epochs": 2,
        "flags": ["--model", "lstm-lm", "--hidden", "96", "--data", TEXT, "--sequence", "16", "--batch", "16",
                  "--clip", "1", "--train-samples", "20000"], "lr": "0.5",
        "codecs": TEXT_CODECS, "limit": 2.0, "reported": set()},
}
SHARED_FLAGS = ["--schedule", "cosine", "--lr-warmup", "50", "--log-every", "50", "--workers", "4", "--eval-every", "1000000"]
BEGIN, END = "<!-- parity: begin -->", "<!-- parity: end -->"


def file_of(args, task, codec, seed):
    return args.out / f"{task}-{codec.replace(':', '_')}-{seed}.json"


def run_one(args, task, codec, seed):
    out = file_of(args, task, codec, seed)
    about = TASKS[task]
    flags = [args.text_source if flag == TEXT else flag for flag in about["flags"]]
    if codec not in WITHOUT_WARM_UP:
        flags += ["--dense-epochs", str(about["epochs"] / 4)]
    command = [args.program, "train", *flags, *SHARED_FLAGS, "--epochs", str(about["epochs"]), "--codec", codec, "--seed", str(seed),
               "--lr", OTHER_RATES.get(codec, about["lr"]), "--json", str(out)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}parity: exit {done.returncode}")
    row = json.loads(out.read_text())
    print(f"{task} {codec} seed {seed}: {row['metric']} {row['metric_value']:.2f}, {row['wire_bytes_per_step']:.0f} bytes/step, "
          f"{time.monotonic() - started:.0f} s", flush=True)


def rows_of(args, task):
    """One row per codec of which a run is there."""
    found = []
    for codec in TASKS[task]["codecs"]:
        runs = [json.loads(path.read_text()) for seed in range(1, args.seeds + 1)
                if (path := file_of(args, task, codec, seed)).exists()]
        if runs:
            found.append({"codec": codec, "runs": runs, "value": statistics.mean(run["metric_value"] for run in runs)})
    return found


def verdict(task, row, base):
    gap = row["value"] - base if row["runs"][0]["metric"] == "accuracy" else 100 * (1 - row["value"] / base)
    unit = "points" if row["runs"][0]["metric"] == "accuracy" else "%"
    if row["codec"] == "none":
        return "", ""
    if row["codec"] in TASKS[task]["reported"]:
        return f"{gap:+.2f} {unit}", "reported"
    return f"{gap:+.2f} {unit}", "held" if gap >= -TASKS[task]["limit"] else f"MISSED ({TASKS[task]['limit']} allowed)"


def table(args, task):
    rows = rows_of(args, task)
    if not rows:
        return []
    base = next((row["value"] for row in rows if row["codec"] == "none"), None)
    first = rows[0]["runs"][0]
    lines = [f"**{TASKS[task]['title']}**: {TASKS[task]['epochs']} epochs, {first['steps']} steps of 4 workers, {first['parameters']} parameters; "
             f"mean of {min(len(row['runs']) for row in rows)} seeds (least to most); {first['machine']}, {first['date']}.", "",
             f"| codec | {first['metric']} | against none | within the limit | bytes/step after warm-up | compressed elements | warm-up |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        values = [run["metric_value"] for run in row["runs"]]
        run = row["runs"][0]
        gap, held = verdict(task, row, base) if base is not None else ("", "")
        lines.append(f"| `{row['codec']}` | {row['value']:.2f} ({min(values):.2f} to {max(values):.2f}) | {gap} | {held} | "
                     f"{run['wire_bytes_per_step']:.0f} | {100 * run['compressed_share']:.1f} % | "
                     f"{100 * run['warm_steps'] / run['steps']:.0f} % |")
    return lines + [""]


def put_between_marks(path, text):
    page = path.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{path}: wanted the marks {BEGIN} and {END}")
    head, rest = page.split(BEGIN, 1)
    path.write_text(head + BEGIN + "\n" + text + END + rest.split(END, 1)[1])


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
        put_between_marks(args.markdown, text + "\n")


if __name__ == "__main__":
    main()
