"""Addresses of host names, looked up by threads of their own: a resolver may take many seconds."""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable

FRESH_S = 30.0
"""Seconds after which a name is looked up again."""


def in_background(work: Callable[[], object]) -> None:
    """Run `work` in a thread of its own, which does not keep the process alive."""
    thread = threading.Thread(target=work, name="penstock-host-names", daemon=True)
    thread.start()


class _Lookup:
    """A lookup of one name, which runs or has ended."""

    def __init__(self, host: str) -> None:
        self.addresses: list[str] = []
        self.error = ""
        self.begun_s = time.monotonic()
        self.done = threading.Event()
        self._host = host

    def run(self) -> None:
        """Look the name up."""
        try:
            infos = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.error = str(error)
        else:
            addresses = [str(info[4][0]) for info in infos]
            self.addresses = list(dict.fromkeys(addresses))
        self.done.set()


class HostNames:
    """Looks names up. Thread-safe."""

    def __init__(self) -> None:
        self._lookups: dict[str, _Lookup] = {}
        self._lock = threading.Lock()

    def addresses(self, host: str, wait_s: float) -> list[str]:
        """Return the numeric addresses of a host. Raises: OSError if there is none within `wait_s`."""
        if _is_numeric(host):
            return [host]
        lookup = self._lookup(host)
        if not lookup.done.wait(wait_s):
            raise OSError(0, f"the name {host} is not resolved within {wait_s:g} s: check the node's DNS")
        if not lookup.addresses:
            raise OSError(0, f"the name {host} does not resolve ({lookup.error}): check the peers' names")
        return lookup.addresses

    def _lookup(self, host: str) -> _Lookup:
        """Return the lookup of a host, begun anew if it is old. A lookup that hangs stays the only one."""
        with self._lock:
            lookup = self._lookups.get(host)
            if lookup is not None:
                age_s = time.monotonic() - lookup.begun_s
                if age_s < FRESH_S or not lookup.done.is_set():
                    return lookup
            lookup = self._lookups[host] = _Lookup(host)
        in_background(lookup.run)
        return lookup


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
