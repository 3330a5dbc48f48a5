#!/usr/bin/env python3
"""table.py PROGRAM: how near predictions are, and whether the planner picks the fastest strategy, between shaped hosts.

    table.py build/bin/gradpress [--part predictions|strategies] [--only PATTERN] [--folder build/replay]

For every kind of host (4 of one worker, 2 of two; 100 Mbit/s, 1 Gbit/s) `gradpress profile` first writes a cluster file
over Gloo. Nothing is fitted afterwards: predictions come from that file and the trace alone. Then `gradpress replay`
plays three models, made smaller, with four codecs each, and the table puts the measured step beside the predicted one.

The second part plays the planner's strategies against each other, one codec for each model and kind of host. Strategies
within 15 % of the fastest play two rounds more, in turn, so that a machine that is busy for a while is so for all.

A long run can be made of short ones: results and cluster files are kept in --folder, each run adds the settings that
--only names (a pattern over "4x1 100mbit resnet101 efsign"), and the tables are of all that is there. --fresh begins anew.
Needs root, for the hosts, and the traces: --traces DIR, by default traces/ in $GRADPRESS_DATA.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/multihost"))
import hosts as shaped  # noqa: E402  (a module of the tests)

WORLDS = {"4x1": (4, 1), "2x2": (2, 2)}
RATES = ("100mbit", "1gbit")
# Elements are divided by these, so that a raw step takes some tenths of a second, and so that all workers' codecs together fit this
# machine's cores while backward runs; backward's times are the traces' own.
SHRINK = {"100mbit": {"resnet101": 80, "vgg16": 150, "bert-base": 120},
          "1gbit": {"resnet101": 16, "vgg16": 30, "bert-base": 24}}
CODECS = ("none", "efsign", "topk:0.01", "acpsgd:4")
STRATEGIES = ("best", "raw", "none", "espresso", "hipress", "hitopk", "byteps-compress", "all", "myopic", "device-only", "host-only",
              "inter-allgather", "inter-alltoall", "alltoall-alltoall")
# For each model and kind of host one codec, so that each codec meets each kind.
RIVALS = {"resnet101": ("efsign", "topk:0.01", "acpsgd:4", "efsign"), "vgg16": ("topk:0.01", "acpsgd:4", "efsign", "topk:0.01"),
          "bert-base": ("acpsgd:4", "efsign", "topk:0.01", "acpsgd:4")}
NEAR = 1.15
EXPOSED = 0.1
GOAL_MEDIAN, GOAL_WORST, GOAL_PICK, GOAL_PICKS = 0.10, 0.25, 0.05, 10
LIMIT_S = 170


def prediction_settings():
    return [(world, rate, model, codec) for world in WORLDS for rate in RATES for model in SHRINK[rate] for codec in CODECS]


def strategy_settings():
    kinds = [(world, rate) for world in WORLDS for rate in RATES]
    return [(world, rate, model, RIVALS[model][i]) for i, (world, rate) in enumerate(kinds) for model in SHRINK[rate]]


class Bench:
    """The hosts of one kind at a time, and the results so far."""

    def __init__(self, args):
        self.args = args
        self.folder = pathlib.Path(args.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "replay.json"
        if args.fresh:
            for old in [self.file, *self.folder.glob("cluster-*.json")]:
                old.unlink(missing_ok=True)
        self.results = {"format": "gradpress-replay-table-1", "predictions": {}, "strategies": {}}
        if self.file.exists():
            self.results = json.loads(self.file.read_text())

    def save(self):
        text = json.dumps(self.results, indent=1)
        self.file.write_text(text)
        if self.args.json:
            pathlib.Path(self.args.json).write_text(text)

    def run(self, net, world, *arguments):
        """One command of gradpress on all hosts; (what rank 0 wrote as JSON, None) or (None, why not)."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.json"
            command = [self.args.program, *arguments, "--backend", "gloo", "--json", str(out)]
            workers, _ = net.run(command, WORLDS[world][1], LIMIT_S)
            codes = {worker.process.returncode for worker in workers}
            if codes != {0}:
                said = next((worker.text for worker in workers if worker.process.returncode), "")
                if codes == {2}:  # wrong input, on every rank alike: this strategy does not fit
                    return None, said.splitlines()[-1] if said else "wrong input"
                sys.exit(f"table: {' '.join(command)}: exit codes {sorted(codes)}\n{said}")
            return json.loads(out.read_text()), None

    def cluster(self, net, world, rate):
        """The cluster file of these hosts, measured once."""
        path = self.folder / f"cluster-{world}-{rate}.json"
        if not path.exists():
            say(f"{world} {rate}: profile")
            started = time.monotonic()
            found, why = self.run(net, world, "profile", "--name", f"{world}-{rate}", "--codecs",
                                  ",".join(codec for codec in CODECS if codec != "none"))
            if why:
                sys.exit(f"table: profile: {why}")
            found["profile_seconds"] = round(time.monotonic() - started, 1)
            path.write_text(json.dumps(found, indent=1))
            say(f"{world} {rate}: profiled in {found['profile_seconds']} s")
        return path

    def replay(self, net, setting, strategy, steps, warmup):
        """One run. The strategy "raw" is the planner's best without a codec, buckets included."""
        world, rate, model, codec = setting
        if strategy == "raw":
            strategy, codec = "best", "none"
        return self.run(net, world, "replay", "--cluster", str(self.cluster(net, world, rate)), "--trace",
                        str(self.args.traces / f"{model}.json"), "--codec", codec, "--strategy", strategy,
                        "--shrink", str(SHRINK[rate][model]), "-n", str(steps), "-w", str(warmup))

    def predict(self, net, setting):
        row, why = self.replay(net, setting, "best", self.args.steps, 3)
        if why:
            sys.exit(f"table: {name_of(setting)}: {why}")
        error = row["predicted_us"] / row["measured_us"] - 1
        say(f"{name_of(setting)}: predicted {row['predicted_us'] / 1e3:.1f} ms, measured {row['measured_us'] / 1e3:.1f} ms, "
            f"{error:+.1%}")
        kept = ("predicted_us", "measured_us", "measured_min_us", "measured_max_us", "wire_bytes", "promised_bytes",
                "exposed_us", "strategy", "lanes", "date", "machine")
        self.results["predictions"][name_of(setting)] = {"error": error, **{name: row[name] for name in kept}}

    def compare(self, net, setting):
        """Every strategy in turn; then those near the fastest twice more."""
        found = {}
        for strategy in STRATEGIES:
            row, why = self.replay(net, setting, strategy, 4, 1)
            found[strategy] = {"why_not": why} if why else {"predicted_us": row["predicted_us"],
                                                            "rounds_us": [row["measured_us"]]}
            what = why or f"predicted {row['predicted_us'] / 1e3:.1f} ms, measured {row['measured_us'] / 1e3:.1f} ms"
            say(f"{name_of(setting)}: {strategy}: {what}")
        times = {name: entry["rounds_us"][0] for name, entry in found.items() if "rounds_us" in entry}
        # `best` is judged, so it plays all rounds wherever it stands.
        near = [name for name in times if name == "best" or times[name] <= NEAR * min(times.values())]
        for _ in range(2):
            for strategy in near:
                row, _ = self.replay(net, setting, strategy, 6, 1)
                found[strategy]["rounds_us"].append(row["measured_us"])
        for entry in found.values():
            if "rounds_us" in entry:
                entry["measured_us"] = statistics.median(entry["rounds_us"])
        winner = min(near, key=lambda name: found[name]["measured_us"])
        behind = found["best"]["measured_us"] / found[winner]["measured_us"] - 1
        say(f"{name_of(setting)}: winner {winner}, best is {behind:.1%} behind")
        self.results["strategies"][name_of(setting)] = {"winner": winner, "behind": behind, "strategies": found}


def name_of(setting):
    return " ".join(setting)


def say(text):
    print(text, flush=True)


def measure(bench, part, settings, work):
    """Those settings that --only names and that are not there yet, one kind of host after the other."""
    wanted = [setting for setting in settings
              if fnmatch.fnmatch(name_of(setting), bench.args.only) and name_of(setting) not in bench.results[part]]
    for kind in dict.fromkeys(setting[:2] for setting in wanted):
        with shaped.Hosts(WORLDS[kind[0]][0], kind[1]) as net:
            bench.cluster(net, *kind)
            for setting in wanted:
                if setting[:2] == kind:
                    work(net, setting)
                    bench.save()


def predictions_markdown(rows):
    lines = ["| hosts | rate | model | codec | strategy | predicted, ms | measured, ms (least to most) | error |",
             "|---|---|---|---|---|---:|---:|---:|"]
    for name, row in rows.items():
        world, rate, model, codec = name.split(" ")
        lines.append(f"| {world} | {rate} | {model} | {codec} | {row['strategy']} | {row['predicted_us'] / 1e3:.1f} | "
                     f"{row['measured_us'] / 1e3:.1f} ({row['measured_min_us'] / 1e3:.1f} to "
                     f"{row['measured_max_us'] / 1e3:.1f}) | {row['error']:+.1%} |")
    errors = [abs(row["error"]) for row in rows.values()]
    lines += ["", f"Of {len(errors)} settings, {sum(name.startswith('2x2') for name in rows)} of them 2 hosts x 2 workers: the "
              f"median error is {statistics.median(errors):.1%} (goal: {GOAL_MEDIAN:.0%}), the worst {max(errors):.1%} (goal: "
              f"{GOAL_WORST:.0%}); {sum(error <= GOAL_WORST for error in errors)} are within {GOAL_WORST:.0%}."]
    # Where backward hides everything a step is easily predicted.
    shown = [abs(row["error"]) for row in rows.values() if row["exposed_us"] > EXPOSED * row["measured_us"]]
    if shown:
        lines += [f"In {len(shown)} of them more than {EXPOSED:.0%} of the step was exposed: there the median is "
                  f"{statistics.median(shown):.1%}, the worst {max(shown):.1%}."]
    return lines


def strategies_markdown(rows):
    lines = ["| hosts | rate | model | codec | best, ms | winner | its ms | best is behind | slowest, ms |",
             "|---|---|---|---|---:|---|---:|---:|---:|"]
    for name, row in rows.items():
        times = {key: entry["measured_us"] for key, entry in row["strategies"].items() if "measured_us" in entry}
        slowest = max(times, key=times.get)
        lines.append(f"| {' | '.join(name.split(' '))} | {times['best'] / 1e3:.1f} | {row['winner']} | "
                     f"{times[row['winner']] / 1e3:.1f} | {row['behind']:.1%} | {times[slowest] / 1e3:.1f} ({slowest}) |")
    right = sum(row["behind"] <= GOAL_PICK for row in rows.values())
    lines += ["", f"`best` is the winner or within {GOAL_PICK:.0%} of it in {right} of {len(rows)} settings (goal: {GOAL_PICKS} "
              f"of 12)."]
    return lines


def markdown(results):
    lines = []
    if results["predictions"]:
        lines += ["### Predicted against measured", "", *predictions_markdown(results["predictions"]), ""]
    if results["strategies"]:
        lines += ["### Is `best` the fastest?", "", *strategies_markdown(results["strategies"]), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--part", choices=("predictions", "strategies", "all"), default="all")
    parser.add_argument("--only", default="*", help='pattern of settings, such as "2x2 1gbit *"')
    parser.add_argument("--folder", default="build/replay", help="keeps cluster files and results")
    parser.add_argument("--traces", type=pathlib.Path, default=pathlib.Path(os.environ.get("GRADPRESS_DATA", ".")) / "traces")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a prediction's replay")
    parser.add_argument("--fresh", action="store_true", help="forget what the folder has, cluster files too")
    parser.add_argument("--json", help="also write all results here")
    parser.add_argument("--markdown", help="also write the tables here")
    args = parser.parse_args()
    if not (args.traces / "resnet101.json").exists():
        sys.exit(f"table: no resnet101.json in {args.traces}: wanted the folder of traces, by --traces or GRADPRESS_DATA")
    bench = Bench(args)
    try:
        if args.part != "strategies":
            measure(bench, "predictions", prediction_settings(), bench.predict)
        if args.part != "predictions":
            measure(bench, "strategies", strategy_settings(), bench.compare)
    except (shaped.CannotMakeHosts, PermissionError) as error:
        shaped.skip(error)
    text = markdown(bench.results)
    print(text)
    if args.markdown:
        pathlib.Path(args.markdown).write_text(text)


if __name__ == "__main__":
    main()
