"""Check the addresses of servers that options and environment variables name."""

import re
from socket import AF_INET6, inet_aton, inet_pton

from ..errors import InvalidStore
from ..redaction import redact

MOST_PORT = 65_535
_HOST = r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))"
_ADDRESS = re.compile(rf"https?://{_HOST}(?::(?P<port>\d{{1,5}}))?(?:/[^\s?#<>\"`]*)?")
_NUMBER = re.compile(r"\d+|0[xX][0-9A-Fa-f]*")
"""The last label of a host that the client takes for an IPv4 address."""


def check_address(url: str, what: str, address: object) -> str:
    """Return a server's address, checked because the client panics on an invalid one. what: the setting's name.

    Raises: InvalidStore.
    """
    text = str(address)
    match = _ADDRESS.fullmatch(text)
    is_valid = False
    if match is not None and int(match["port"] or 0) <= MOST_PORT:
        if match["ipv6"] is not None:
            is_valid = _is_ipv6(match["ipv6"])
        else:
            is_valid = _is_name_or_ipv4(match["name"])
    if not is_valid:
        raise InvalidStore(
            f"{url}: {what}={redact(text)!r} is not an address of a server; write http://host:port or https://host, "
            "without a user",
            what=what,
            where=url,
            given=text,
        )
    return text


def _is_ipv6(host: str) -> bool:
    try:
        inet_pton(AF_INET6, host)
    except OSError:
        return False
    return True


def _is_name_or_ipv4(host: str) -> bool:
    host = host.removesuffix(".")
    _, _, last_label = host.rpartition(".")
    if not _NUMBER.fullmatch(last_label):
        return True
    try:
        # Like the client, and unlike `inet_pton`, it accepts 127.1 and 0x7f.1.
        inet_aton(host)
    except OSError:
        return False
    return True
