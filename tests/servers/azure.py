"""As much of Azure Blob Storage as a client needs, for tests that break it: an origin for `http.py`.

What the real one does beyond this is tested against Azurite.
"""

import hashlib
import re
import threading
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

Answer = tuple[int, bytes, dict[str, str]]
_WHEN = "Wed, 21 Oct 2015 07:28:00 GMT"


class SmallAzure:
    """One container, no signatures, under /account/container/. page_keys: how many keys a page of a listing holds."""

    def __init__(self, bucket: str = "bucket", account: str = "lab") -> None:
        self.base = f"/{account}/{bucket}"
        self.objects: dict[str, bytes] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.page_keys = 3
        self._lock = threading.Lock()

    def hold(self, key: str, data: bytes) -> None:
        """As if somebody had put it."""
        self.objects[key] = data

    def held(self) -> dict[str, bytes]:
        return dict(self.objects)

    def __call__(self, request) -> Answer:
        with self._lock:
            return self.answer(request)

    def answer(self, request) -> Answer:
        key, query = request.path[len(self.base) + 1 :], request.query
        comp = query.get("comp")
        if comp == "list":
            return self.list(query)
        if comp == "batch":
            return self._batch(request)
        if request.method == "PUT":
            return self._put(request, key, query)
        if key not in self.objects:
            return error_answer(404, "BlobNotFound")
        if request.method == "DELETE":
            del self.objects[key]
            return make_answer(202)
        data = self.objects[key]
        span = request.headers.get("x-ms-range") or request.headers.get("range")
        if span is None or request.method == "HEAD":
            return make_answer(200, data, data)
        low, high = (int(number) for number in span.removeprefix("bytes=").split("-"))
        if low >= len(data):
            return error_answer(416, "InvalidRange")
        piece = data[low : high + 1]
        return make_answer(
            206, piece, data, {"content-range": f"bytes {low}-{low + len(piece) - 1}/{len(data)}"}
        )

    def list(self, query: dict[str, str]) -> Answer:
        prefix, after = query.get("prefix", ""), bytes.fromhex(query.get("marker", "")).decode()
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page, rest = keys[: self.page_keys], keys[self.page_keys :]
        entries = "".join(
            f"<Blob>{_name(key)}<Properties><Last-Modified>{_WHEN}</Last-Modified><Content-Length>"
            f"{len(self.objects[key])}</Content-Length><Content-Type>x/y</Content-Type><Etag>"
            f"{etag(self.objects[key])}</Etag></Properties></Blob>"
            for key in page
        )
        more = f"<NextMarker>{page[-1].encode().hex()}</NextMarker>" if rest else "<NextMarker/>"
        body = f"<EnumerationResults><Blobs>{entries}</Blobs>{more}</EnumerationResults>"
        return make_answer(200, body.encode(), more={"content-type": "application/xml"})

    def _put(self, request, key: str, query: dict[str, str]) -> Answer:
        if query.get("comp") == "block":
            self.blocks[key, query["blockid"]] = request.body
            return make_answer(201)
        data = request.body
        if query.get("comp") == "blocklist":
            names = re.findall(rb"<(?:Latest|Uncommitted)>([^<]+)<", data)
            data = b"".join(self.blocks[key, name.decode()] for name in names)
        elif source := request.headers.get("x-ms-copy-source"):
            data = self.objects[unquote(source).partition(f"{self.base}/")[2]]
        elif request.headers.get("if-none-match") == "*" and key in self.objects:
            return error_answer(409, "BlobAlreadyExists")
        self.objects[key] = data
        return make_answer(201, b"", data, {"x-ms-copy-status": "success"})

    def _batch(self, request) -> Answer:
        made = []
        for number, path in enumerate(re.findall(rb"DELETE (\S+) HTTP", request.body)):
            key = unquote(path.decode()).partition(f"{self.base}/")[2]
            found = self.objects.pop(key, None) is not None
            status = "202 Accepted" if found else "404 The specified blob does not exist."
            made.append(
                f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n"
                f"x-ms-request-id: {number}\r\n\r\n"
            )
        return 202, "".join([*made, "--b--\r\n"]).encode(), {"content-type": "multipart/mixed; boundary=b"}


def _name(key: str) -> str:
    """The element of a blob's name: one that XML cannot hold is percent-encoded."""
    if key.isprintable():
        return f"<Name>{escape(key)}</Name>"
    return f'<Name Encoded="true">{quote(key)}</Name>'


def make_answer(
    status: int, body: bytes = b"", of: bytes | None = None, more: dict[str, str] | None = None
) -> Answer:
    """of: the object whose ETag goes along."""
    tag = "e" if of is None else etag(of)
    headers = {"etag": f'"{tag}"', "last-modified": _WHEN, "x-ms-blob-type": "BlockBlob"}
    return status, body, {**headers, **(more or {})}


def error_answer(status: int, code: str) -> Answer:
    return make_answer(status, f"<Error><Code>{code}</Code></Error>".encode(), more={"x-ms-error-code": code})


def etag(data: bytes) -> str:
    return f"0x{hashlib.md5(data, usedforsecurity=False).hexdigest()}"
