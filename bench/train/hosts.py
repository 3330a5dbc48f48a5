#!/usr/bin/env python3
"""hosts.py GRADPRESS [--rate 100mbit] [--hosts 4] [--codecs none,acpsgd:4,powersgd:4,auto] [--json F]: time to the accuracy of
uncompressed training, on hosts with shaped links.

Steps to the accuracy are counted unshaped, among threads; the time of a step is measured between the hosts, over Gloo. The
product is the time; both factors are in the table. For `auto` the time of a step is that after it has decided, and its steps are
not counted: what it decides may change between steps.
Needs root (network namespaces) and iproute2.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/multihost"))
import hosts as shaped  # noqa: E402  (a module of the tests)

MODEL = ["--model", "vgg11", "--width", "8", "--hidden", "1024", "--batch", "16", "--lr", "0.02", "--lr-warmup", "50", "--log-every", "10",
         "--train-samples", "12000"]


def codec_flags(codec):
    return ["--plan", "auto"] if codec == "auto" else ["--codec", codec]


def finished(command, code, text):
    if code != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{text}\nhosts: exit {code}")


def history(args, folder, codec, seed):
    """Accuracy by step of a run among threads, on a link without limits."""
    out = folder / f"steps-{codec.replace(':', '_')}-{seed}.json"
    command = [args.program, "train", *MODEL, "--codec", codec, "--workers", str(args.hosts), "--test-samples", "2000", "--steps", str(args.steps), "--eval-every",
               str(args.eval_every), "--seed", str(seed), "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    finished(command, done.returncode, done.stdout + done.stderr)
    return [(point["step"], point["metric_value"]) for point in json.loads(out.read_text())["history"]
            if point["metric_value"] is not None]


def step_ms(args, folder, net, codec):
    out = folder / "step.json"
    steps = args.auto_steps if codec == "auto" else args.timed_steps
    command = [args.program, "train", *MODEL, *codec_flags(codec), "--backend", "gloo", "--steps", str(steps), "--eval-every", "1000000",
               "--test-samples", "40", "--json", str(out)]
    net.workers = []
    net.start(command)
    codes = net.wait(600)
    finished(command, max(map(abs, codes)), "\n".join(worker.text for worker in net.workers))
    return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--codecs", default="none,acpsgd:4,powersgd:4,auto", help="the first is what the others are compared with")
    parser.add_argument("--steps", type=int, default=360)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--timed-steps", type=int, default=12)
    parser.add_argument("--auto-steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    codecs = args.codecs.split(",")
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            with shaped.Hosts(args.hosts, args.rate) as net:
                for codec in codecs:
                    rows[codec] = step_ms(args, folder, net, codec)
                    print(f"{codec}: {rows[codec]['step_ms']:.1f} ms a step ({rows[codec]['running']})", flush=True)
        except (shaped.CannotMakeHosts, PermissionError) as error:
            shaped.skip(error)
        runs = {codec: [history(args, folder, codec, seed) for seed in range(1, args.seeds + 1)] for codec in codecs if codec != "auto"}
    # What every uncompressed run reached.
    target = min(max(value for _, value in run) for run in runs[codecs[0]])
    print(f"# {args.hosts} hosts, {args.rate}, Gloo; to {target:.2f} % accuracy; steps: median of {args.seeds} seeds, counted unshaped")
    print(f"{'codec':<14} {'ms/step':>9} {'steps':>7} {'seconds':>9} {'speed-up':>9} {'bytes/step':>11}")
    table = []
    for codec in codecs:
        reached = [next((step for step, value in run if value >= target), None) for run in runs.get(codec, [])]
        steps = statistics.median(reached) if reached and None not in reached else None
        seconds = steps * rows[codec]["step_ms"] / 1e3 if steps else None
        table.append({"codec": codec, "step_ms": rows[codec]["step_ms"], "steps": steps, "seconds": seconds,
                      "wire_bytes_per_step": rows[codec]["wire_bytes_per_step"], "running": rows[codec]["running"]})
        first = table[0]["seconds"]
        print(f"{codec:<14} {rows[codec]['step_ms']:9.1f} {steps or '-':>7} {f'{seconds:.1f}' if seconds else '-':>9} "
              f"{f'{first / seconds:.2f} x' if first and seconds else '-':>9} {rows[codec]['wire_bytes_per_step']:11.0f}")
    print("per step: " + ", ".join(f"{codec} {rows[codecs[0]]['step_ms'] / rows[codec]['step_ms']:.2f} x" for codec in codecs[1:]))
    if args.json:
        args.json.write_text(json.dumps({"hosts": args.hosts, "rate": args.rate, "target": target, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
