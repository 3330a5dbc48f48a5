"""From a process group to a session: the connections that gradpress sends by, and what it knows of the machines."""
from __future__ import annotations

import array
import atexit
import fcntl
import os
import socket
import struct
import weakref
from datetime import timedelta
from typing import Any, Mapping, NamedTuple, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from gradpress import _core, _torch_versions

Parameters = Sequence[Tuple[str, torch.Tensor]]
AnySession = Union[_core.Session, _core.DeviceSession]

# How many were made beside each process group: the same on all its ranks, because all attach in the same order.
_made: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()

# Sessions have threads, which must end before the interpreter does.
_open: "weakref.WeakSet[_core.Session]" = weakref.WeakSet()

_CONNECT = timedelta(minutes=5)
_SIOCGIFADDR = 0x8915


@atexit.register
def _close_all() -> None:
    for session in list(_open):
        session.close()


def device_path(parameters: Parameters, settings: Mapping[str, Any]) -> bool:
    """Whether gradients are compressed where they are, by ATen's operators: those of a device when each codec has such a
    path; those in host memory when the environment asks for it, which is for tests."""
    codecs = [settings["codec"], *(codec for _, codec in settings["rules"])]
    elsewhere = any(tensor.device.type != "cpu" for _, tensor in parameters)
    asked = os.environ.get("GRADPRESS_DEVICE_PATH", "")
    if asked not in ("", "aten", "host"):
        raise ValueError(f'gradpress: GRADPRESS_DEVICE_PATH: wanted "aten", "host" or nothing, got "{asked}"')
    if asked == "aten":
        missing = [codec for codec in codecs if not _core.DeviceSession.can(codec)]
        if missing:
            raise ValueError(f"gradpress: GRADPRESS_DEVICE_PATH=aten: there is no such path for {', '.join(missing)}, only "
                             "for none, fp16, bf16, topk, randomk, efsign, powersgd and acpsgd")
        return True
    return asked == "" and elsewhere and all(map(_core.DeviceSession.can, codecs))


def open_device_session(process_group: Any, parameters: Parameters, settings: Mapping[str, Any]) -> _core.DeviceSession:
    """For the same parameters without leaving their device; sends by the process group itself."""
    return _core.DeviceSession(process_group, [name for name, _ in parameters], [tensor for _, tensor in parameters],
                               dict(settings))


def open_session(process_group: Any, parameters: Parameters, settings: Mapping[str, Any]) -> _core.Session:
    """An engine for these parameters between the ranks of a process group; every rank calls it."""
    sibling = _sibling(process_group)
    session = _core.Session(sibling.group, [name for name, _ in parameters], [tensor for _, tensor in parameters],
                            {"address": sibling.address, "local_size": sibling.local_size, **settings})
    _open.add(session)
    return session


class Sibling(NamedTuple):
    """A group of the same ranks as another."""
    group: Any
    address: str
    local_size: int


def _sibling(process_group: Any) -> Sibling:
    """Connects the ranks of a process group once more, for gradpress alone.

    DDP's own collectives (buffers, used parameters, join) pair by the order in which ranks issue them. Those of another
    thread must not come between: hence connections of our own, between the same ranks, found at the same store.
    """
    count = _made.get(process_group, 0)
    _made[process_group] = count + 1
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    store = dist.PrefixStore(str(count), _torch_versions.store_of(process_group))
    group = _torch_versions.gloo_group(store, rank, size, _CONNECT)
    return Sibling(group, own_address(), _workers_per_machine(store, rank, size))


def own_address() -> str:
    """The address at which other machines reach this one."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            request = array.array("B", struct.pack("256s", interface.encode()[:15]))
            try:
                fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request, True)
            except OSError as error:
                raise ValueError(f"gradpress: GLOO_SOCKET_IFNAME={interface}: wanted an interface with an IPv4 address, "
                                 f"got: {error.strerror}") from error
            return socket.inet_ntoa(request[20:24].tobytes())
        # Sends nothing: the kernel only chooses the way.
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])


def _machine() -> str:
    node = next((os.environ[name] for name in ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID") if name in os.environ), "")
    return f"{socket.gethostname()} {node}"


def _workers_per_machine(store: Any, rank: int, size: int) -> int:
    """How many ranks share a machine, when they are numbered machine by machine and equally many; else 1."""
    store.set(f"machine/{rank}", _machine())
    machines = [store.get(f"machine/{other}") for other in range(size)]
    runs = [1]
    for previous, machine in zip(machines, machines[1:]):
        if machine == previous:
            runs[-1] += 1
        else:
            runs.append(1)
    return runs[0] if len(set(runs)) == 1 and len(set(machines)) == len(runs) else 1
