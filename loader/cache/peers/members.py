"""The nodes of a cluster's cache, and the owner of each page by rendezvous hashing.

The owner of a page is the member with the highest hash of (page, host of the member). If a member goes, only its pages
move (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Nodes that disagree about the
members keep a page twice.
"""

import hashlib
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from ...errors import InvalidRuntime
from ..addresses import DNS, PORT, SLURM, format_address, split_address
from ..host_names import in_background
from .environment import slurm_job, slurm_node

REFRESH_S = 30.0
"""Seconds after which addresses behind a DNS name are asked for again."""
SCONTROL_S = 30
SLURM_PORTS = 20_000
"""A job's port is PORT plus its id modulo this: two jobs on one node rarely collide."""


class CacheMembers:
    """The members of a cluster's cache. Thread-safe.

    peers: as `parse_peers` returns them. `resolve` (NAME, PORT -> addresses), `clock` and `start` are for tests.
    """

    def __init__(
        self,
        peers: tuple[str, ...],
        *,
        environ: Mapping[str, str] | None = None,
        resolve: Callable[[str, int], list[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], object]], None] = in_background,
    ) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._resolve = resolve or _addresses
        self._clock = clock
        self._name: tuple[str, int] | None = None
        self._next_look_s = 0.0
        self._all: tuple[str, ...] = ()
        if peers[0] == SLURM:
            self._all = slurm_addresses(environ)
        elif peers[0].startswith(DNS):
            self._name = split_address(peers[0].removeprefix(DNS))
        else:
            self._all = tuple(sorted(peers))
        self._owner = lru_cache(maxsize=2**16)(_owner)

    def all(self) -> tuple[str, ...]:
        """Return the members' addresses, sorted. Empty if a DNS name has no address yet."""
        if self._name is not None:
            self._read_hosts()
        return self._all

    def owner(self, name: str) -> str | None:
        """Return the address of a page's owner; None without members."""
        members = self.all()
        return self._owner(name, members) if members else None

    def _read_hosts(self) -> None:
        """Ask for the addresses behind the DNS name, every `REFRESH_S`. Waits for the first ones only."""
        with self._lock:
            if self._clock() < self._next_look_s:
                return
            is_first = not self._next_look_s
            self._next_look_s = self._clock() + REFRESH_S
        if is_first:
            self._resolve_name()
        else:
            # A resolver that hangs must not stop the reads.
            self._start(self._resolve_name)

    def _resolve_name(self) -> None:
        assert self._name is not None
        try:
            addresses = self._resolve(*self._name)
        except OSError:
            return  # the addresses of before are better than none
        if addresses:
            self._all = tuple(sorted(set(addresses)))


@lru_cache(maxsize=16)
def _identities(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return the host of each member, or its address if others have that host.

    A new job and a restarted run have other ports on the nodes whose folders have the pages.
    """
    hosts = [split_address(member)[0] for member in members]
    count = Counter(hosts)
    identities = list(members)
    for number, host in enumerate(hosts):
        if count[host] == 1:
            identities[number] = host
    return tuple(identities)


def _owner(name: str, members: tuple[str, ...]) -> str:
    """Return the member whose hash with the page's name is largest: if one leaves, only its pages move."""
    best = b""
    owner = members[0]
    for member, identity in zip(members, _identities(members), strict=True):
        pair = f"{name} {identity}"
        weight = hashlib.blake2b(pair.encode(), digest_size=8).digest()
        if weight > best:
            best = weight
            owner = member
    return owner


def _addresses(name: str, port: int) -> list[str]:
    """Return HOST:PORT of each address behind a DNS name. Raises: OSError."""
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for *_, address in infos]
    return [format_address(host, port) for host in hosts]


def slurm_addresses(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return HOST:PORT of each node of a Slurm job. Raises: InvalidRuntime outside a job."""
    job = slurm_job(environ)
    if job is None:
        raise InvalidRuntime(
            'cache peers = "slurm", and SLURM_JOB_NODELIST and SLURM_JOB_ID are not set: this is not a Slurm job. Give '
            "a list of HOST:PORT instead"
        )
    port = slurm_port(job.id)
    addresses = [format_address(host, port) for host in _hostnames(job.nodes)]
    return tuple(sorted(addresses))


def slurm_port(job_id: int) -> int:
    """Return the port of a Slurm job's servers."""
    return PORT + job_id % SLURM_PORTS


@lru_cache(maxsize=4)
def _hostnames(nodes: str) -> tuple[str, ...]:
    """Return the hosts of Slurm's compact list, such as node[1-4]. Raises: InvalidRuntime."""
    if not re.fullmatch(r"[0-9A-Za-z_.,\[\]-]{1,100000}", nodes):
        raise InvalidRuntime(f"SLURM_JOB_NODELIST={nodes[:80]!r} is not a list of host names")
    if "[" not in nodes:  # names only: `scontrol` is not needed
        return tuple(nodes.split(","))
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True,
            check=True,
            text=True,
            timeout=SCONTROL_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidRuntime(
            f"`scontrol show hostnames` failed ({error}); give the cache's peers as a list of HOST:PORT"
        ) from error
    return tuple(shown.stdout.split())


def is_local(address: str) -> bool:
    """Return whether a host of HOST:PORT is this machine."""
    host, _ = split_address(address)
    if host in (socket.gethostname(), slurm_node()):
        return True
    try:
        infos = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(info[0], str(info[4][0])) for info in infos)


def _can_bind(family: int, host: str) -> bool:
    """Return whether an address is this machine's."""
    # Only an address of one of this machine's interfaces can be bound.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
