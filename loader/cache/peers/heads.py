"""Heads of requests between nodes: a strict subset of HTTP/1.1 that curl and a load balancer also send."""

import re
from collections.abc import Mapping
from typing import NamedTuple

HEAD_BYTES = 4096
"""Longest head of a request, in bytes."""
HEAD_END = b"\r\n\r\n"

CLAIM = "penstock-claim"
"""Header of a GET that asks for a claim if the page is missing."""
SET = "penstock-set"
"""Header with the id of the reader's set of objects."""
NONCE = "penstock-nonce"
"""Header of a PUT or a release: the nonce of its claim, in hex."""
CHECKSUM = "penstock-checksum"
"""Header of a PUT: the CRC-32C of the page's name and data, in 8 hex digits."""
SHA256 = "penstock-sha256"
"""Header of a PUT of a near checkpoint's file: the SHA-256 of the body, in 64 hex digits."""

GRANTED = "granted"
"""Absence: the page is missing and the caller has the claim, whose nonce follows."""
COMING = "coming"
"""Absence: another reader has the claim."""
NOT_STORED = "not stored"
"""Absence: the page is missing and is not worth its room."""
UNKNOWN_SET = "; unknown set"
"""Ending of a verdict: the server has no list of the set's objects."""

_REQUEST_LINE = re.compile(r"(GET|PUT|POST|DELETE) (/v1/[0-9A-Za-z/_.-]{1,200}) HTTP/1\.1")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,60}):[ \t]*([\x20-\x7e]{0,2000}?)[ \t]*")
_RANGE = re.compile(r"bytes=(\d{1,12})-(\d{1,12})")


class BadHead(ValueError):
    """A head that the server does not accept."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RequestHead(NamedTuple):
    """One parsed head."""

    method: str
    path: str
    nbytes: int
    """Bytes of the body."""
    headers: Mapping[str, str]
    """Lower-case name -> value."""

    def byte_range(self) -> tuple[int, int] | None:
        """Return the requested [start, stop); None without a Range header. Raises: BadHead."""
        text = self.headers.get("range")
        if text is None:
            return None
        match = _RANGE.fullmatch(text)
        if match is None:
            raise BadHead(416, "one range is accepted: bytes=FIRST-LAST")
        start = int(match[1])
        stop = int(match[2]) + 1
        if stop <= start:
            raise BadHead(416, "the range ends before it begins")
        return start, stop


def parse_head(data: bytes) -> RequestHead:
    """Parse a head, without its empty line. Raises: BadHead."""
    first, *lines = data.decode("latin-1").split("\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        raise BadHead(400, "expected GET, PUT, POST or DELETE of a path below /v1/, as HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadHead(400, "a header line cannot be parsed")
        name = header[1].lower()
        # Two lengths could let two servers see two different requests.
        if name in headers:
            raise BadHead(400, f"the header {name} stands there twice")
        headers[name] = header[2]
    if "transfer-encoding" in headers:
        raise BadHead(411, "a body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) <= 12):
        raise BadHead(400, "Content-Length is no number of bytes")
    return RequestHead(request[1], request[2], int(length), headers)
