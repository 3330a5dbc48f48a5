"""From a torch process group to connections of gradpress's own between the same ranks."""
from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
import time
import weakref
from datetime import timedelta
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

import torch.distributed as dist

from gradpress import _torch_versions

# Connections made beside each process group: the same count on all its ranks, because all attach in the same order.
_made: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()

_SIOCGIFADDR = 0x8915
# How long a rank is looked for once time is up.
_LOOK_S = 0.05


class Meeting(NamedTuple):
    """Ranks that are about to connect: the store at which they meet, and who they are."""
    store: Any
    rank: int
    size: int
    deadline: float
    start_timeout_s: float


def meet(process_group: Any, start_timeout_s: float) -> Meeting:
    """Begins a new connection of the group's ranks. Every rank calls it, in the same order among its calls."""
    count = _made.get(process_group, 0)
    _made[process_group] = count + 1
    store = dist.PrefixStore(str(count), _torch_versions.store_of(process_group))
    return Meeting(store, dist.get_rank(process_group), dist.get_world_size(process_group),
                   time.monotonic() + start_timeout_s, start_timeout_s)


def _gather(meeting: Meeting, what: str, mine: str) -> List[str]:
    """Every rank's text, by rank.

    Raises RuntimeError that names the ranks whose text did not come in time.
    """
    keys = [f"{what}/{rank}" for rank in range(meeting.size)]
    meeting.store.set(keys[meeting.rank], mine)
    missing = [rank for rank, key in enumerate(keys) if not _comes(meeting, key)]
    if missing:
        raise RuntimeError(
            f"gradpress: rank {meeting.rank} waited {meeting.start_timeout_s:g} s (start_timeout_s) for "
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} to attach; every rank of the process "
            "group must make the same gradpress calls in the same order")
    return [meeting.store.get(key).decode() for key in keys]


def _comes(meeting: Meeting, key: str) -> bool:
    """Whether the key is set before the meeting's deadline. (1.13's stores cannot say at once whether a key is set.)"""
    try:
        meeting.store.wait([key], timedelta(seconds=max(_LOOK_S, meeting.deadline - time.monotonic())))
    except RuntimeError:
        return False
    return True


def agree(meeting: Meeting, written: Mapping[str, Any]) -> None:
    """Compares what the ranks' users wrote, text by text.

    Raises ValueError on every rank if they differ, with both texts.
    """
    texts = {name: value if isinstance(value, str) else repr(value) for name, value in written.items()}
    ranks = [json.loads(text) for text in _gather(meeting, "written", json.dumps(texts))]
    for name in sorted({name for one in ranks for name in one}):
        values = [one.get(name, "nothing") for one in ranks]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise ValueError(f"gradpress: the ranks disagree on {name}: rank 0 has {values[0]}, rank {other} has "
                             f"{values[other]}; give every rank the same")


def own_address() -> str:
    """The address at which other machines reach this one."""
    interface = interface_name()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            request = array.array("B", struct.pack("256s", interface.encode()[:15]))
            try:
                fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request, True)
            except OSError as error:
                raise ValueError(f"gradpress: GLOO_SOCKET_IFNAME={interface}: wanted an interface with an IPv4 address, "
                                 f"got: {error.strerror}") from error
            return socket.inet_ntoa(request[20:24].tobytes())
        # Sends nothing: the kernel only chooses the route.
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])


def interface_name() -> str:
    """The first interface that torch's Gloo would use, or nothing."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]


def _machine() -> str:
    node = next((os.environ[name] for name in ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID") if name in os.environ), "")
    return f"{socket.gethostname()} {node}"


def workers_per_machine(machines: Sequence[str]) -> int:
    """How many ranks share a machine, when they are numbered machine by machine and equally many; else 1."""
    runs = [1]
    for previous, machine in zip(machines, machines[1:]):
        if machine == previous:
            runs[-1] += 1
        else:
            runs.append(1)
    return runs[0] if len(set(runs)) == 1 and len(set(machines)) == len(runs) else 1


def connection(meeting: Meeting, timeout_s: float, address: Optional[str], local_size: Optional[int]) -> Mapping[str, Any]:
    """What gradpress_group_connect needs. Rank 0's process hosts the store by which the ranks watch each other."""
    if local_size is None:
        local_size = workers_per_machine(_gather(meeting, "machine", _machine()))
    options = {"backend": "gloo", "rank": meeting.rank, "size": meeting.size, "local_rank": meeting.rank % local_size,
               "local_size": local_size, "store_host_rank": 0, "timeout_s": timeout_s,
               "start_timeout_s": meeting.start_timeout_s}
    if interface_name():
        options["interface"] = interface_name()
    if meeting.rank == 0:
        options["store"], options["store_listener"] = _listen(meeting, address)
    else:
        options["store"] = _address_of_store(meeting)
    return options


def _listen(meeting: Meeting, address: Optional[str]) -> Any:
    try:
        host = address or own_address()
        listener = socket.create_server((host, 0), backlog=max(128, meeting.size),
                                        family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError) as error:
        meeting.store.set("store", f"!{error}")
        raise
    port = listener.getsockname()[1]
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    meeting.store.set("store", text)
    return text, listener.detach()


def _address_of_store(meeting: Meeting) -> str:
    if not _comes(meeting, "store"):
        raise RuntimeError(f"gradpress: rank 0 did not say within {meeting.start_timeout_s:g} s (start_timeout_s) where it "
                           "listens")
    text = meeting.store.get("store").decode()
    if text.startswith("!"):
        raise RuntimeError(f"gradpress: rank 0 cannot listen for the other ranks: {text[1:]}; GLOO_SOCKET_IFNAME or "
                           "attach(…, address=…) names the interface or the address")
    return str(text)
