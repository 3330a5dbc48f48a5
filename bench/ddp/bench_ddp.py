#!/usr/bin/env python3
"""Steps under DDP between shaped hosts: gradpress beside plain DDP and torch's own hooks.

    bench_ddp.py BUILD [--rate 1gbit] [--hosts 4] [--models lstm,vgg11] [--settings ddp,acpsgd:4] [--seconds 5] [--json F]

Every number is the median over the steps of all rounds, with the smallest and largest; all settings of a model are
measured in the same processes, in turn. Needs root for the hosts (tests/multihost/hosts.py), and says so without.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "multihost"))
import hosts as shaped  # noqa: E402

SETTINGS = "compute,ddp,torch-fp16,torch-powersgd,acpsgd:4,auto"


def torch_python():
    """Debian's torch belongs to Debian's python3, which need not be the first in PATH."""
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    shaped.skip("no python3 here has torch: install python3-torch")
    return None


def measure(hosts, model, args, python):
    rate = shaped.bits_per_second(args.rate) / 1e6
    command = [python, str(ROOT / "bench/ddp/worker.py"), model, str(rate), str(args.seconds),
               *args.settings.split(",")]
    variables = {"PYTHONPATH": f"{pathlib.Path(args.build).resolve()}/python", "PYTHONDONTWRITEBYTECODE": "1",
                 "OMP_NUM_THREADS": "1"}
    workers, _ = hosts.run(command, timeout_s=args.timeout, variables=variables)
    lines = [line for line in workers[0].lines if line.startswith("RESULT ")]
    if any(worker.process.returncode for worker in workers) or not lines:
        for worker in workers:
            print(f"-- rank {worker.rank}, exit code {worker.process.returncode}\n{worker.text}", file=sys.stderr)
        sys.exit(1)
    return json.loads(lines[0][len("RESULT "):])


def show(result):
    medians = {row["setting"]: statistics.median(row["step_ms"]) for row in result["rows"]}
    for row in result["rows"]:
        median = medians[row["setting"]]
        against = [f"{medians[other] / median:6.2f} x {other}" for other in ("ddp", "torch-powersgd") if other in medians]
        print(f"{result['model']:12} {row['setting']:16} {median:9.1f} ms  [{min(row['step_ms']):.1f}, "
              f"{max(row['step_ms']):.1f}] of {len(row['step_ms'])}  {'  '.join(against)}  {row['running']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--models", default="resnet18,vgg11,lstm,transformer")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--seconds", type=float, default=5.0, help="per setting, about")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    python = torch_python()
    results = []
    print(f"replay, {args.hosts} hosts, {args.rate}, {os.cpu_count()} cores of {platform.machine()}, "
          f"{datetime.date.today()}", flush=True)
    try:
        with shaped.Hosts(args.hosts, args.rate) as hosts:
            for model in args.models.split(","):
                results.append(measure(hosts, model, args, python))
                show(results[-1])
    except (shaped.CannotMakeHosts, PermissionError) as error:
        shaped.skip(error)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"hosts": args.hosts, "rate": args.rate, "results": results},
                                                      indent=1))


if __name__ == "__main__":
    main()
