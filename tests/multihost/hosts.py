#!/usr/bin/env python3
"""Hosts with shaped links on one machine, made of network namespaces.

    hosts.py --hosts 4 --rate 1gbit [--workers 2] [--latency-us 100] [--mtu 9000] [--cut HOST@SECONDS] -- COMMAND ...

Each host has a network, a host name and one card (eth0) of its own; all hang on one switch. A card sends and receives
at the rate; what comes for one host from several is shared among them fairly. COMMAND runs as --workers processes
on every host, with the variables of torchrun and GLOO_SOCKET_IFNAME. At the end the bytes that the kernel counted at
every card are printed. Addresses exist inside the namespaces alone, and these have no names: they end with the
processes that hold them, also when this program is killed.

Needs root (or the right to make namespaces) and iproute2. Without, it says so and exits with 77, which ctest takes for
"skipped"; with CI=true in the environment it exits with 1 instead.
"""
import argparse
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

CARD = "eth0"
NETWORK = "10.213.0"
PORT = 29500  # private to the namespaces, so nobody else can hold it
# Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
HEADER_BYTES = 66
ETHERNET_BYTES = 14
MTU = 1500
SKIPPED = 77
PR_SET_PDEATHSIG = 1


class CannotMakeHosts(Exception):
    """This machine or this user cannot have such hosts."""


def die_with_parent():
    """Runs in the child, before its program: the kernel kills it when this process ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bits_per_second(rate):
    match = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", rate)
    if not match or int(match[1]) == 0:
        raise ValueError(f'rate "{rate}": wanted a whole number with kbit, mbit or gbit')
    return int(match[1]) * {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}[match[2]]


@dataclasses.dataclass
class Counters:
    """Of one card, as the kernel counts them. A packet may be one that the card would still cut into frames."""
    sent_bytes: int = 0
    sent_packets: int = 0
    received_bytes: int = 0
    received_packets: int = 0

    def __sub__(self, other):
        return Counters(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def sent_payload(self):
        """Bytes sent without headers. The same whether or not packets were cut into frames before they were counted."""
        return self.sent_bytes - HEADER_BYTES * self.sent_packets


class Namespace:
    """A network and a host name of their own, for as long as a process holds them."""

    def __init__(self, name):
        self.name = name
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && ip link set lo up && echo ready && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent)
        if self.holder.stdout.readline() != "ready\n":
            words = self.holder.stderr.read().strip()
            self.close()
            raise CannotMakeHosts(f"no network namespace: {words or 'unshare failed'}; run as root")

    def enter(self, command):
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--", *command]

    def run(self, *command, text=None):
        done = subprocess.run(self.enter(command), input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotMakeHosts(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}")

    def close(self):
        """The namespace ends with its last process."""
        self.holder.kill()
        self.holder.wait()
        for pipe in (self.holder.stdin, self.holder.stdout, self.holder.stderr):
            pipe.close()


@dataclasses.dataclass
class Worker:
    rank: int
    host: int
    process: subprocess.Popen
    lines: list
    reader: threading.Thread

    @property
    def text(self):
        return "\n".join(self.lines)


class Hosts:
    """Context manager: the hosts are there inside it, and nothing of them after it."""

    def __init__(self, count, rate, latency_us=0, mtu=MTU, echo=False):
        self.count = count
        self.mtu = mtu
        self.rate = bits_per_second(rate)
        self.latency_us = latency_us
        self.echo = echo
        self.namespaces = []
        self.switch = None
        self.workers = []
        self.folder = None
        self.print_lock = threading.Lock()

    def __enter__(self):
        for tool in ("unshare", "nsenter", "ip", "tc"):
            if shutil.which(tool) is None:
                raise CannotMakeHosts(f"{tool} is not installed: wanted Debian's util-linux and iproute2")
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.end_workers(signal.SIGKILL)
        for namespace in [*self.namespaces, *filter(None, [self.switch])]:
            namespace.close()
        self.namespaces, self.switch = [], None
        if self.folder:
            self.folder.cleanup()
            self.folder = None

    def address(self, host):
        return f"{NETWORK}.{host + 1}"

    def _build(self):
        self.switch = Namespace("switch")
        self.switch.run("ip", "-batch", "-", text="link add name bridge0 type bridge stp_state 0 forward_delay 0\n"
                                                  "link set bridge0 up\n")
        for host in range(self.count):
            self.namespaces.append(Namespace(f"host{host}"))
            self._plug_in(host)
        for host in range(self.count):
            self._shape(host)

    def _plug_in(self, host):
        namespace = self.namespaces[host]
        packet = self._packet_bytes()
        self.switch.run("ip", "-batch", "-", text=(
            f"link add name port{host} mtu {self.mtu} type veth peer name {CARD} mtu {self.mtu} netns "
            f"{namespace.holder.pid}\n"
            f"link set port{host} master bridge0 gso_max_size {packet} up\n"))
        # Reno keeps its window by losses alone: no measured rate that the shaper's bursts could mislead.
        namespace.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv4.tcp_congestion_control=reno")
        namespace.run("ip", "-batch", "-", text=(f"link set {CARD} gso_max_size {packet} up\n"
                                                 f"addr add {self.address(host)}/24 dev {CARD}\n"))

    def _packet_bytes(self):
        """The largest packet that the shaper sees at once: a quarter of a millisecond on the wire, so that the token
        bucket, which must hold two of them and is free of charge, stays small."""
        return min(max(self.rate // 32000, 2 * (self.mtu + ETHERNET_BYTES)), 65536)

    def _shape(self, host):
        """Up: a token bucket at the host's card. Down: at the switch's port a class for every sender, equal shares."""
        packet = self._packet_bytes()
        bucket = 2 * packet
        queue = max(self.rate // 400, 65536)  # 20 ms
        up = f"qdisc add dev {CARD} root handle 1: tbf rate {self.rate}bit burst {bucket} limit {queue}\n"
        if self.latency_us:
            # Between the host and its bucket. As many packets as are under way in that time, and some.
            under_way = 1000 + self.rate * self.latency_us // 8_000_000 // 1000
            up = (f"qdisc add dev {CARD} root handle 1: netem delay {self.latency_us}us limit {under_way}\n"
                  f"qdisc add dev {CARD} parent 1:1 handle 2: tbf rate {self.rate}bit burst {bucket} limit {queue}\n")
        try:
            self.namespaces[host].run("tc", "-batch", "-", text=up)
        except CannotMakeHosts as error:
            if self.latency_us:
                raise CannotMakeHosts(f"{error}; latency needs the kernel's sch_netem") from error
            raise
        port = f"port{host}"
        share = f"htb rate {self.rate // (self.count + 1)}bit ceil {self.rate}bit burst 1600 cburst {bucket} quantum {packet}"
        lines = [f"qdisc add dev {port} root handle 1: htb default 2",
                 f"class add dev {port} parent 1: classid 1:1 htb rate {self.rate}bit burst {bucket} cburst {bucket} "
                 f"quantum {packet}",
                 f"class add dev {port} parent 1:1 classid 1:2 {share}"]  # what is no IP
        for sender in range(self.count):
            class_id = f"1:{100 + sender}"
            lines += [f"class add dev {port} parent 1:1 classid {class_id} {share}",
                      f"qdisc add dev {port} parent {class_id} bfifo limit {queue}",
                      f"filter add dev {port} parent 1: protocol ip prio 1 u32 match ip src {self.address(sender)}/32 "
                      f"flowid {class_id}"]
        self.switch.run("tc", "-batch", "-", text="\n".join(lines) + "\n")

    def counters(self):
        """By host, of its card."""
        found = []
        for namespace in self.namespaces:
            text = pathlib.Path(f"/proc/{namespace.holder.pid}/net/dev").read_text()
            numbers = [int(word) for word in re.search(rf"{CARD}:(.*)", text)[1].split()]
            found.append(Counters(sent_bytes=numbers[8], sent_packets=numbers[9],
                                  received_bytes=numbers[0], received_packets=numbers[1]))
        return found

    def cut(self, host):
        """As if the cable were pulled at the switch."""
        self.switch.run("ip", "link", "set", f"port{host}", "down")

    def restore(self, host):
        self.switch.run("ip", "link", "set", f"port{host}", "up")

    def start(self, command, workers=1, variables=None):
        """`workers` processes on every host, in the order of ranks; they are in self.workers."""
        size = self.count * workers
        for rank in range(size):
            host = rank // workers
            self._start_one(rank, host, command, {
                "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % workers, "LOCAL_WORLD_SIZE": workers,
                "GROUP_RANK": host, "MASTER_ADDR": self.address(0), "MASTER_PORT": PORT,
                # All hosts share this machine's cores, which real ones would not.
                "GLOO_SOCKET_IFNAME": CARD, "GRADPRESS_PATIENT_GLOO": 1, **(variables or {})})

    def start_on(self, host, command, variables=None):
        """One process, without rank variables: a launcher that brings its own."""
        self._start_one(len(self.workers), host, command, variables or {})

    def _start_one(self, rank, host, command, variables):
        process = subprocess.Popen(
            self.namespaces[host].enter(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, preexec_fn=die_with_parent,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}})
        lines = []
        reader = threading.Thread(target=self._read, args=(rank, process.stdout, lines), daemon=True)
        self.workers.append(Worker(rank, host, process, lines, reader))
        reader.start()

    def _read(self, rank, stream, lines):
        with contextlib.closing(stream):
            for line in stream:
                lines.append(line.rstrip("\n"))
                if self.echo:
                    with self.print_lock:
                        print(f"[{rank}] {lines[-1]}", flush=True)

    def wait(self, timeout_s, grace_s=60):
        """Until all have ended; returns their exit codes. When one fails, the others have grace_s more."""
        deadline = time.monotonic() + timeout_s
        failed = False
        while any(worker.process.poll() is None for worker in self.workers):
            if not failed and any(worker.process.poll() for worker in self.workers):
                failed = True
                deadline = min(deadline, time.monotonic() + grace_s)
            if time.monotonic() > deadline:
                self.end_workers(signal.SIGKILL)
            time.sleep(0.02)
        for worker in self.workers:
            worker.reader.join(5)
        return [worker.process.returncode for worker in self.workers]

    def run(self, command, workers=1, timeout_s=120, variables=None):
        """start and wait; returns the workers and what every card counted meanwhile."""
        self.workers = []
        before = self.counters()
        self.start(command, workers, variables)
        self.wait(timeout_s)
        return self.workers, [after - start for after, start in zip(self.counters(), before)]

    def end_workers(self, number):
        for worker in self.workers:
            if worker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, number)
                if number == signal.SIGKILL:
                    worker.process.wait()

    def openmpi(self, command, workers=1, options=()):
        """mpirun's command line, for start_on(0): one daemon per host, by an agent that enters its namespace instead
        of calling ssh; TCP over the cards alone, no shared memory."""
        if not self.folder:
            self.folder = tempfile.TemporaryDirectory(prefix="gradpress-hosts-")
        agent = pathlib.Path(self.folder.name) / "agent"
        cases = "\n".join(f"{self.address(host)}) exec {' '.join(namespace.enter(['sh', '-c']))} \"$*\" ;;"
                          for host, namespace in enumerate(self.namespaces))
        agent.write_text(f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\nesac\nexit 1\n")
        agent.chmod(0o755)
        hosts = ",".join(f"{self.address(host)}:{workers}" for host in range(self.count))
        settings = {"plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": 1, "pml": "ob1", "btl": "tcp,self",
                    "btl_tcp_if_include": CARD, "oob_tcp_if_include": CARD, "orte_tmpdir_base": self.folder.name}
        words = [word for name, value in settings.items() for word in ("--mca", name, str(value))]
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--map-by", "slot",
                "--host", hosts, "-n", str(self.count * workers), *words, *options, *command]


def skip(reason):
    """Ends the program because there can be no hosts here."""
    in_ci = os.environ.get("CI") == "true"
    print(f"hosts: {reason}" + ("; in CI this is a failure" if in_ci else ": skipped"), flush=True)
    sys.exit(1 if in_ci else SKIPPED)


def cut_later(hosts, text):
    host, _, seconds = text.partition("@")

    def pull():
        time.sleep(float(seconds))
        hosts.cut(int(host))
        print(f"hosts: link of host {host} is down", flush=True)
    threading.Thread(target=pull, daemon=True).start()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--latency-us", type=int, default=0)
    parser.add_argument("--mtu", type=int, default=MTU)
    parser.add_argument("--workers", type=int, default=1, help="on every host")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds")
    parser.add_argument("--cut", metavar="HOST@SECONDS", help="pulls that host's cable then")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("wanted a command after --")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Hosts(args.hosts, args.rate, args.latency_us, args.mtu, echo=True) as hosts:
            if args.cut:
                cut_later(hosts, args.cut)
            workers, counted = hosts.run(command, args.workers, args.timeout)
            for host, counters in enumerate(counted):
                print(f"hosts: host {host} sent {counters.sent_bytes} B in {counters.sent_packets} packets, "
                      f"{counters.sent_payload()} B without headers; received {counters.received_bytes} B")
    except (CannotMakeHosts, PermissionError) as error:
        skip(error)
    except ValueError as error:
        sys.exit(f"hosts: {error}")
    codes = [worker.process.returncode for worker in workers]
    sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))


if __name__ == "__main__":
    main()
