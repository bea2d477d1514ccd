"""Nodes with network interfaces of their own: namespaces that a bridge joins, with links of 10 Gb/s."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

SUBNET = "10.77.0"
GBITS = 10
BURST_BYTES = 2 * 2**20
"""Bytes that may pass at once: a timer of 4 ms refills the bucket."""
QUEUE_MS = 50
DELAY_US = 100
"""Delay of each sender, where the kernel has netem: 0.2 ms for a round trip."""
QUEUE_PACKETS = 100_000


class Place(NamedTuple):
    """Where a process of the cluster runs."""

    host: str
    """Address of its interface."""
    command: tuple[str, ...]
    """Beginning of its command line."""


LOOPBACK = Place("127.0.0.1", ())


def refusal() -> str:
    """Return why this process cannot make namespaces; empty if it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing:
        return f"network namespaces need {' and '.join(missing)} (iproute2)"
    return ""


def describe_links() -> str:
    """Return what the links of the namespaces are."""
    with ExitStack() as stack:
        name = f"penstock-{os.getpid()}-probe"
        _add_namespace(stack, name)
        delay = "no delay, which needs netem"
        if _has_delay(name):
            delay = f"{2 * DELAY_US / 1000:g} ms"
    return f"{GBITS} Gb/s, {delay}"


@contextmanager
def namespaces(n: int) -> Iterator[list[Place]]:
    """Yield n places, each in a network namespace. The namespaces end with the block."""
    prefix = f"penstock-{os.getpid()}"
    switch = f"{prefix}-switch"
    places: list[Place] = []
    with ExitStack() as stack:
        _add_namespace(stack, switch)
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for number in range(n):
            name = f"{prefix}-{number}"
            host = f"{SUBNET}.{number + 1}"
            _add_namespace(stack, name)
            _connect(switch, name, f"port{number}", host)
            places.append(Place(host, ("ip", "netns", "exec", name)))
        yield places


def _add_namespace(stack: ExitStack, name: str) -> None:
    _run(f"ip netns add {name}")
    stack.callback(_run, f"ip netns del {name}")


def _connect(switch: str, name: str, port: str, host: str) -> None:
    """Connect a namespace to the switch, with a limit of the rate in both directions."""
    _run(f"ip -n {switch} link add {port} type veth peer name eth0 netns {name}")
    _run(f"ip -n {switch} link set {port} master bridge up")
    _run(f"ip -n {name} address add {host}/24 dev eth0")
    _run(f"ip -n {name} link set eth0 up")
    _run(f"ip -n {name} link set lo up")
    limits = f"rate {GBITS}gbit burst {BURST_BYTES} latency {QUEUE_MS}ms"
    _run(f"tc -n {switch} qdisc add dev {port} root handle 1: tbf {limits}")
    _run(f"tc -n {name} qdisc add dev eth0 root handle 1: tbf {limits}")
    if _has_delay(name):
        delay = f"netem delay {DELAY_US}us limit {QUEUE_PACKETS}"
        _run(f"tc -n {name} qdisc replace dev eth0 parent 1:1 {delay}")


def _has_delay(name: str) -> bool:
    """Return whether the kernel delays packets (netem)."""
    command = f"tc -n {name} qdisc replace dev lo root netem delay 0us"
    tried = subprocess.run(command.split(), capture_output=True, check=False)
    if tried.returncode == 0:
        _run(f"tc -n {name} qdisc del dev lo root")
    return tried.returncode == 0


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
