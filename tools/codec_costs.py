#!/usr/bin/env python3
"""codec_costs.py --bench BENCH.json [--bench MORE.json]... CLUSTER.json...: measured codec costs into cluster files.

A bench file is what `gradpress bench codec -b 64K -e 4M -f 8 --json BENCH.json` wrote. In every cluster file the codec_costs
are replaced by the bench's microseconds, for both places: the bench runs on a CPU, so `device` stands for a worker that
computes on the same kind of core. Of several runs the least median counts: other load on the machine only adds.
Costs are kept under the codec's name without its parameters; of low-rank codecs, whose costs grow with the rank, with it.
"""
import argparse
import json
import pathlib
import sys


def costs_of(benches):
    """codec_costs by name; points ascending in elements."""
    costs = {}
    for row in (row for bench in benches for row in bench["codecs"]):
        name = row["codec"].split(":")[0]
        if name == "none":
            continue
        if name in ("acpsgd", "powersgd"):
            name = row["codec"]
        point = costs.setdefault(name, {}).setdefault(row["elements"], {"elements": row["elements"]})
        for what in ("encode", "decode"):
            # The cost model counts every encode of a step, the bench all of them together.
            rounds = row["rounds"] if what == "encode" else 1
            took_us = round(row[f"{what}_vs_memcpy"] * row["memcpy_us"] / rounds, 3)
            point[f"{what}_us"] = min(took_us, point.get(f"{what}_us", took_us))
    points = {name: [by_size[size] for size in sorted(by_size)] for name, by_size in costs.items()}
    return {name: {"device": list(rows), "host": list(rows)} for name, rows in points.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", action="append", required=True, help="what gradpress bench codec --json wrote")
    parser.add_argument("clusters", nargs="+", help="cluster files to change")
    arguments = parser.parse_args()
    benches = [json.loads(pathlib.Path(name).read_text()) for name in arguments.bench]
    for name, bench in zip(arguments.bench, benches):
        if bench.get("format") != "gradpress-bench-codec-1":
            sys.exit(f"{name}: wanted format gradpress-bench-codec-1, got {bench.get('format')}")
    costs = costs_of(benches)
    first = benches[0]
    for name in arguments.clusters:
        path = pathlib.Path(name)
        cluster = json.loads(path.read_text())
        cluster["source"] = (
            "Links are assumed: rate = line rate less protocol overhead, latency of a TCP round through a kernel. "
            f"Codec costs are measured: gradpress bench codec on {first['machine']}, target {first['target']}, "
            f"{first['date']}, one core, the least median of {len(benches)} runs, each encode of powersgd by itself. "
            "Device and host are the same core here: a worker with an accelerator should replace the device's costs. "
            "Sparse codecs were measured at 1 %.")
        cluster["codec_costs"] = costs
        path.write_text(json.dumps(cluster, indent=1) + "\n")
        print(f"{name}: {len(costs)} codecs from {len(benches)} runs")


if __name__ == "__main__":
    main()
