#!/usr/bin/env python3
"""allreduce.py PROGRAM [--hosts 4] [--rate 1gbit] [--bytes 25000000] [--mtu 1500] [--json F]: all-reduce between hosts of shaped
links, beside what the link allows and beside PyTorch's own over Gloo.

bound: the ring's 2(p-1)/p times the bytes at the full rate. No TCP reaches it: of every frame of 1514 B at most
1448 B are payload (of jumbo frames, --mtu 9000, 8948 of 9014), so the second column divides by the bound at that rate. The two libraries take turns on the same
hosts, so that a machine that is busy for a while is so for both.
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


def payload_share(mtu):
    """Of a full frame: without Ethernet's, IP's and TCP's headers."""
    return (mtu + shaped.ETHERNET_BYTES - shaped.HEADER_BYTES) / (mtu + shaped.ETHERNET_BYTES)


def torch_python():
    """Debian's torch belongs to Debian's python3, which need not be the first in PATH."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def finished(net, what):
    codes = net.wait(300)
    if set(codes) != {0}:
        sys.exit(f"{what}: " + "\n".join(worker.text for worker in net.workers))


def ours(net, program, backend, args):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [program, "bench", "collective", "--backend", backend, "-b", str(args.bytes), "-n", str(args.turns), "-w", "1",
                   "--json", str(out)]
        net.workers = []
        if backend == "mpi":
            net.start_on(0, net.openmpi(command))
        else:
            net.start(command)
        finished(net, backend)
        row = json.loads(out.read_text())["rows"][0]
    return row["median_us"]


def torchs(net, python, args):
    net.workers = []
    net.start([python, str(HERE / "torch_allreduce.py"), str(args.bytes), "1", str(args.turns)])
    finished(net, "torch")
    return statistics.median(json.loads(net.workers[0].lines[-1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", type=int, default=25_000_000)
    parser.add_argument("--turns", type=int, default=5, help="timed calls in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mtu", type=int, default=shaped.MTU, help="of the hosts' cards")
    parser.add_argument("--backends", default="gloo,mpi")
    parser.add_argument("--json")
    args = parser.parse_args()
    python = torch_python()
    names = [*args.backends.split(","), *(["torch"] if python else [])]
    times = {name: [] for name in names}
    try:
        with shaped.Hosts(args.hosts, args.rate, mtu=args.mtu) as net:
            for _ in range(args.rounds):
                for name in names:
                    times[name].append(torchs(net, python, args) if name == "torch" else
                                       ours(net, args.program, name, args))
    except (shaped.CannotMakeHosts, PermissionError) as error:
        shaped.skip(error)
    bound_us = 2 * (args.hosts - 1) / args.hosts * args.bytes * 8e6 / shaped.bits_per_second(args.rate)
    print(f"# all-reduce of {args.bytes} B on {args.hosts} hosts at {args.rate}; times: median of {args.turns} calls, "
          f"of {args.rounds} rounds the middle, least and most; ring bound {bound_us / 1e3:.1f} ms")
    print(f"{'# library':<16} {'ms':>9} {'least':>9} {'most':>9} {'bound':>7} {'payload bound':>14}")
    rows = []
    for name in names:
        median = statistics.median(times[name])
        rows.append({"name": name, "median_us": median, "min_us": min(times[name]), "max_us": max(times[name]),
                     "vs_bound": median / bound_us, "vs_payload_bound": median / bound_us * payload_share(args.mtu)})
        label = "PyTorch Gloo" if name == "torch" else f"gradpress {name}"
        print(f"{label:<16} {median / 1e3:9.1f} {min(times[name]) / 1e3:9.1f} {max(times[name]) / 1e3:9.1f} "
              f"{median / bound_us:7.3f} {median / bound_us * payload_share(args.mtu):14.3f}")
    if not python:
        print("PyTorch's row is left out: python3-torch is not installed.")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            {"hosts": args.hosts, "rate": args.rate, "bytes": args.bytes, "bound_us": bound_us, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
