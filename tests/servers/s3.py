"""As much of S3 as a client needs, for tests that count requests or break them: an origin for `http.py`.

What real servers do beyond this is tested against moto and Ceph.
"""

import hashlib
import re
import threading
import warnings
from collections.abc import Mapping, MutableMapping
from html import unescape
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

Answer = tuple[int, bytes, dict[str, str]]
_WHEN = "Wed, 21 Oct 2015 07:28:00 GMT"


class SmallS3:
    """One bucket, no signatures. page_keys: how many keys a page of a listing holds. kept: codes by which the next keys
    of requests to delete are refused."""

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.objects: MutableMapping[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.page_keys = 3
        self.kept: list[str] = []
        self._begun = 0
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
        key, query = request.path[len(self.bucket) + 2 :], request.query
        if request.method == "POST" and "delete" in query:
            return make_answer(200, self._delete(request.body))
        if request.method == "POST" or "partNumber" in query:
            return self._upload(request.method, key, query, request.body)
        if request.method == "DELETE":
            if "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
            else:
                self.objects.pop(key, None)
            return make_answer(204)
        if request.method == "PUT":
            if request.headers.get("if-none-match") == "*" and key in self.objects:
                return error_answer(412, "PreconditionFailed")
            self.objects[key] = request.body
            return make_answer(200, b"", request.body)
        if not key:
            return self.list(query)
        if key not in self.objects:
            return error_answer(404, "NoSuchKey")
        data = self.objects[key]
        if "range" in request.headers and request.method == "GET":
            low, high = (int(number) for number in request.headers["range"].removeprefix("bytes=").split("-"))
            if low >= len(data):
                return error_answer(416, "InvalidRange")
            piece = data[low : high + 1]
            where = {"content-range": f"bytes {low}-{low + len(piece) - 1}/{len(data)}"}
            return make_answer(206, piece, data, where)
        return make_answer(200, data, data)

    def list(self, query: dict[str, str]) -> Answer:
        token, prefix = query.get("continuation-token", ""), query.get("prefix", "")
        after = bytes.fromhex(token).decode() or query.get("start-after", "")
        encoded = query.get("encoding-type") == "url"
        written, told = (quote, "<EncodingType>url</EncodingType>") if encoded else (escape, "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page, rest = keys[: self.page_keys], keys[self.page_keys :]
        entries = "".join(
            f"<Contents><Key>{written(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>{etag(self.objects[key])}</ETag></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{page[-1].encode().hex()}</NextContinuationToken>" if rest else ""
        more = f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>"
        return make_answer(200, f"<ListBucketResult>{told}{more}{token}{entries}</ListBucketResult>".encode())

    def _delete(self, body: bytes) -> bytes:
        made = b""
        for key in re.findall(rb"<Key>([^<]*)</Key>", body):
            if self.kept and (code := self.kept.pop(0)):
                made += b"<Error><Key>%b</Key><Code>%b</Code><Message>m</Message></Error>" % (
                    key,
                    code.encode(),
                )
                continue
            self.objects.pop(unescape(key.decode()), None)
            made += b"<Deleted><Key>%b</Key></Deleted>" % key
        return b"<DeleteResult>%b</DeleteResult>" % made

    def _upload(self, method: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploads" in query:
            self._begun += 1
            name = f"upload-{self._begun}"
            self.uploads[name] = {}
            return make_answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                "</InitiateMultipartUploadResult>".encode(),
            )
        if query["uploadId"] not in self.uploads:
            return error_answer(404, "NoSuchUpload")
        parts = self.uploads[query["uploadId"]]
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return make_answer(200, b"", body)
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        del self.uploads[query["uploadId"]]
        return make_answer(
            200, b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        )


def make_answer(
    status: int, body: bytes = b"", of: bytes | None = None, more: dict[str, str] | None = None
) -> Answer:
    """of: the object whose ETag goes along."""
    return status, body, {"etag": '"e"' if of is None else etag(of), "last-modified": _WHEN, **(more or {})}


def error_answer(status: int, code: str) -> Answer:
    return make_answer(status, f"<Error><Code>{code}</Code></Error>".encode())


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def boto3_client(options: Mapping[str, str], service: str = "s3") -> Any:
    """Return boto3's client of the server that a store's options name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party imports
        import boto3
    return boto3.client(
        service,
        endpoint_url=options["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
