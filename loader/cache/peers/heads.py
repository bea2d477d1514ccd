"""Heads of requests and answers between nodes: a strict subset of HTTP/1.1 that curl and a load balancer also send.

The request for a page and its answer have one exact form each, which takes a tenth of the time of the general one.

A list of ranges asks for all that a call needs of an owner. The answer has a bit for each range that the owner has, and
their bytes follow one another. A list claims nothing: a reader that would fetch a missing page asks for it by its name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

HEAD_BYTES = 4096
"""Longest head of a request, in bytes."""
HEAD_END = b"\r\n\r\n"
ANSWER_HEAD_BYTES = 160
"""Bytes of an answer's head. Spaces fill it, so that the reader receives a head without the bytes that follow."""

CLAIM = "penstock-claim"
"""Header of a GET that asks for a claim if the page is missing: the page's size, and a nonce of the reader's choice.

The reader can end a claim by its nonce even if it never received the answer that granted it.
"""
SET = "penstock-set"
"""Header with the id of the reader's set of objects."""
NONCE = "penstock-nonce"
"""Header of a PUT or a release: the nonce of its claim."""
CHECKSUM = "penstock-checksum"
"""Header of a PUT: the CRC-32C in 8 hex digits, of a page's name and data, or of a near checkpoint's file."""

GRANTED = "granted"
"""Absence: the page is missing and the caller has the claim."""
COMING = "coming"
"""Absence: another reader has the claim."""
NOT_STORED = "not stored"
"""Absence: the page is missing and is not worth its room."""
UNKNOWN_SET = "; unknown set"
"""Ending of a verdict: the server has no list of the set's objects."""

RANGES_PATH = "/v1/ranges"
MOST_RANGES = 64
"""Ranges of a list. Each page's file is open until the answer is sent."""
LIST_BYTES = MOST_RANGES * 80
"""Most bytes of a list."""

_REQUEST_LINE = re.compile(r"(GET|PUT|POST|DELETE) (/v1/[0-9A-Za-z/_.-]{1,200}) HTTP/1\.1")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,60}):[ \t]*([\x20-\x7e]{0,2000}?)[ \t]*")
_RANGE = re.compile(r"bytes=(\d{1,12})-(\d{1,12})")
_CLAIM = re.compile(r"(\d{1,12}) ([0-9a-f]{32})", re.ASCII)
_SET_ID = re.compile(r"[0-9a-f]{32}")
_PAGE_REQUEST = re.compile(
    rb"GET /v1/pages/([0-9a-f]{40}) HTTP/1\.1\r\n"
    rb"Host: [!-~]{1,255}\r\n"
    rb"(?:Authorization: (Bearer [!-~]{1,512})\r\n)?"
    rb"(?:Penstock-Set: ([0-9a-f]{32})\r\n)?"
    rb"Range: bytes=(\d{1,12})-(\d{1,12})\r\n"
    rb"(?:Penstock-Claim: (\d{1,12}) ([0-9a-f]{32})\r\n)?"
    rb"\r\n"
)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r", re.IGNORECASE)
_CONTENT_RANGE = re.compile(rb"\r\ncontent-range:[ \t]*bytes (\d{1,12})-(\d{1,12})/", re.IGNORECASE)
_RANGE_LINE = re.compile(rb"([0-9a-f]{40}) (\d{1,12})-(\d{1,12})\n")
_RANGES_HEAD = re.compile(
    rb"HTTP/1\.1 200 OK\r\nContent-Length: (\d{1,12})\r\nPenstock-Present: ([0-9a-f]{1,16}) *\r\n\r\n"
)
_CODED = re.compile(rb"\r\n(transfer|content)-encoding:", re.IGNORECASE)


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
        raise BadHead(400, "Content-Length is not a number of bytes")
    return RequestHead(request[1], request[2], int(length), headers)


class PageRequest(NamedTuple):
    """A request for a page of the server."""

    name: str
    cut: tuple[int, int] | None
    """Requested bytes of the page, [start, stop); None asks only whether the page is here."""
    claim_bytes: int | None
    """Size of the page, to claim it if it is missing."""
    nonce: str
    """Nonce of the claim."""
    set_id: str
    """Id of the reader's set of objects; empty without one."""


class ExactPageRequest(NamedTuple):
    """A request for a page in the form that readers send."""

    page: PageRequest
    authorization: bytes
    end: int
    """Bytes of the head."""


def page_request_head(address: str, authorization: str, page: PageRequest) -> str:
    """Return the head that asks a peer for a page, which `parse_page_request` accepts.

    authorization: a line that ends with CR LF, or nothing.
    """
    set_line = ""
    if page.set_id:
        set_line = f"Penstock-Set: {page.set_id}\r\n"
    range_line = ""
    if page.cut is not None:
        start, stop = page.cut
        range_line = f"Range: bytes={start}-{stop - 1}\r\n"
    claim_line = ""
    if page.claim_bytes is not None:
        claim_line = f"Penstock-Claim: {page.claim_bytes} {page.nonce}\r\n"
    return (
        f"GET /v1/pages/{page.name} HTTP/1.1\r\nHost: {address}\r\n"
        f"{authorization}{set_line}{range_line}{claim_line}\r\n"
    )


def parse_page_request(data: bytes) -> ExactPageRequest | None:
    """Return the request for a page that begins `data`; None if it has another form: see `parse_head`."""
    match = _PAGE_REQUEST.match(data)
    if match is None:
        return None
    name, authorization, set_id, first, last, claim_bytes, nonce = match.groups(b"")
    start = int(first)
    stop = int(last) + 1
    if stop <= start or match.end() > HEAD_BYTES:
        return None
    claim = None
    if claim_bytes:
        claim = int(claim_bytes)
    page = PageRequest(name.decode(), (start, stop), claim, nonce.decode(), set_id.decode())
    return ExactPageRequest(page, authorization, match.end())


def page_request(name: str, head: RequestHead) -> PageRequest:
    """Return the request for a page that a parsed head states. Raises: BadHead."""
    claim_bytes = None
    nonce = ""
    if CLAIM in head.headers:
        match = _CLAIM.fullmatch(head.headers[CLAIM])
        if match is None:
            raise BadHead(400, f"the header {CLAIM} needs a number of bytes and 32 hex digits")
        claim_bytes = int(match[1])
        nonce = match[2]
    set_id = head.headers.get(SET, "")
    if not _SET_ID.fullmatch(set_id):
        set_id = ""
    return PageRequest(name, head.byte_range(), claim_bytes, nonce, set_id)


def page_answer_head(start: int, stop: int, nbytes: int) -> bytes:
    """Return the head before bytes [start, stop) of a page of so many bytes."""
    head = b'%b%d\r\nETag: "page"' % (page_answer_start(start, stop), nbytes)
    return pad_head(head)


def page_answer_start(start: int, stop: int) -> bytes:
    """Return how the head before bytes [start, stop) of a page begins."""
    return b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/" % (
        stop - start,
        start,
        stop - 1,
    )


def answer_head(status: int, reason: str, nbytes: int, *, is_last: bool) -> bytes:
    """Return the head of an answer with a text. is_last: the connection ends after it."""
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {nbytes}"
    )
    if is_last:
        head += "\r\nConnection: close"
    return pad_head(head.encode("latin-1"))


def pad_head(head: bytes) -> bytes:
    """Return an answer's head of ANSWER_HEAD_BYTES, with its empty line."""
    return head.ljust(ANSWER_HEAD_BYTES - len(HEAD_END)) + HEAD_END


class AnswerHead(NamedTuple):
    """One parsed head of an answer."""

    status: int
    nbytes: int
    """Bytes of the body."""
    cut: tuple[int, int] | None
    """Bytes of the page that are the body, [start, stop), of a 206."""


def parse_answer_head(head: bytes) -> AnswerHead | None:
    """Parse the head of an answer, with its empty line; None if it is no such head."""
    status = _STATUS_LINE.match(head)
    length = _LENGTH.search(head)
    if status is None or length is None or _CODED.search(head):
        return None
    cut = None
    span = _CONTENT_RANGE.search(head)
    if span is not None:
        cut = int(span[1]), int(span[2]) + 1
    return AnswerHead(int(status[1]), int(length[1]), cut)


class PageRange(NamedTuple):
    """Bytes of a page."""

    name: str
    start: int
    """First byte."""
    stop: int
    """Byte after the last."""


class RangesHead(NamedTuple):
    """Head of the answer to a list."""

    nbytes: int
    """Bytes of all ranges that follow."""
    present: int
    """Bit i is set if the owner has range i of the list."""


def ranges_request(address: str, authorization: str, ranges: Sequence[PageRange]) -> bytes:
    """Return the request for some ranges, 1 to MOST_RANGES of them.

    authorization: a line that ends with CR LF, or nothing.
    """
    lines: list[str] = []
    for name, start, stop in ranges:
        last = stop - 1
        line = f"{name} {start}-{last}\n"
        lines.append(line)
    body = "".join(lines)
    head = [
        f"POST {RANGES_PATH} HTTP/1.1\r\n",
        f"Host: {address}\r\n",
        authorization,
        f"Content-Length: {len(body)}\r\n",
        "\r\n",
        body,
    ]
    text = "".join(head)
    return text.encode("latin-1")


def parse_ranges(body: bytes) -> list[PageRange]:
    """Return the ranges of a request's body. Raises: BadHead."""
    ranges: list[PageRange] = []
    end = 0
    for line in _RANGE_LINE.finditer(body):
        if line.start() != end:
            break
        end = line.end()
        name, first, last = line.groups()
        start = int(first)
        stop = int(last) + 1
        if stop <= start:
            raise BadHead(416, "a range ends before it begins")
        text = name.decode()
        one_range = PageRange(text, start, stop)
        ranges.append(one_range)
    is_list = end == len(body)
    if not is_list or not 0 < len(ranges) <= MOST_RANGES:
        raise BadHead(400, f"expected 1 to {MOST_RANGES} lines of a page's name and FIRST-LAST")
    return ranges


def ranges_head(nbytes: int, present: int) -> bytes:
    """Return the head before the bytes of the ranges that are here."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nPenstock-Present: %x" % (
        nbytes,
        present,
    )
    return pad_head(head)


def parse_ranges_head(head: bytes, sizes: Sequence[int]) -> RangesHead | None:
    """Parse the head of an answer to a list; None if it is another answer. sizes: bytes of each range of the list."""
    match = _RANGES_HEAD.fullmatch(head)
    if match is None:
        return None
    nbytes = int(match[1])
    present = int(match[2], 16)
    remaining = present
    present_bytes = 0
    for range_bytes in sizes:
        if remaining & 1:
            present_bytes += range_bytes
        remaining >>= 1
    if remaining:  # more ranges than the list has
        return None
    if nbytes != present_bytes:
        return None
    return RangesHead(nbytes, present)
