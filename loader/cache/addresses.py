"""Addresses of cache servers: HOST:PORT, and the rules that give them."""

import ipaddress
import re
from collections.abc import Sequence
from typing import TypeGuard

from ..errors import InvalidRuntime

PORT = 7070
"""Port of a server, in examples and in `penstock cache serve`."""
SLURM = "slurm"
"""Rule: the nodes of this Slurm job."""
DNS = "dns:"
"""Prefix of a rule: all addresses behind a name."""
PEERS_MAX = 4096
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9A-Za-z_.-]{1,253})):(\d{1,5})")


def parse_peers(peers: object) -> tuple[str, ...]:
    """Return `peers` as a tuple of HOST:PORT, or of one rule. Raises: InvalidRuntime."""
    if isinstance(peers, str):
        peers = peers.split(",")
    if not _is_list(peers):
        raise InvalidRuntime(
            f'cache peers = {peers!r}; accepted: a list of HOST:PORT, "slurm", or "dns:NAME:PORT"'
        )
    if len(peers) > PEERS_MAX:
        raise InvalidRuntime(f"cache peers has {len(peers)} addresses; at most {PEERS_MAX} are accepted")
    if len(set(peers)) < len(peers):
        names = ", ".join(sorted(peers))
        raise InvalidRuntime(f"cache peers names an address twice: {names}")
    if len(peers) > 1:
        for peer in peers:
            split_address(peer)
        return tuple(peers)
    (rule,) = peers
    if rule != SLURM:
        split_address(rule.removeprefix(DNS))
    return (rule,)


def _is_list(peers: object) -> TypeGuard[Sequence[str]]:
    if not isinstance(peers, Sequence) or not peers:
        return False
    return all(isinstance(peer, str) for peer in peers)


def split_address(address: str, *, least_port: int = 1) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT or [IPv6]:PORT. Raises: InvalidRuntime."""
    match = _ADDRESS.fullmatch(address)
    if match is not None:
        host = match[1] or match[2]
        port = int(match[3])
        if least_port <= port < 2**16:
            return host, port
    raise InvalidRuntime(
        f"{address!r} is not an address of a cache server; expected HOST:PORT, as in 10.0.0.1:{PORT}"
    )


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
