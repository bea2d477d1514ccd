"""Google Cloud Storage in memory, for tests: the XML API as obstore speaks it and the JSON API as gcsfs does.

An origin for `http.py`. It proves that the clients are compatible with what Google documents; how Google behaves beyond
that (consistency, quotas, errors) it cannot prove. It also answers as Google's token endpoint (/token) and as a
machine's metadata server, with the token that `bearer` says.
"""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass
from email.utils import formatdate
from itertools import count
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

Answer = tuple[int, bytes, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    generation: int

    @property
    def md5(self) -> bytes:
        return hashlib.md5(self.data, usedforsecurity=False).digest()


@dataclass(slots=True)
class Upload:
    """A resumable one (data so far) or one in parts of the XML API."""

    bucket: str
    name: str
    absent: bool
    parts: dict[int, bytes]


class Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Gcs:
    """Buckets by name. bearer: the only OAuth token that is let in (None: everybody), which is said to live so long;
    page_keys: per listing's page."""

    def __init__(self, *buckets: str) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {name: {} for name in buckets}
        self.uploads: dict[str, Upload] = {}
        self.bearer: str | None = None
        self.lives_s = 3600
        self.page_keys = 1000
        self._numbers = count(1_700_000_000_000_000)
        self._lock = threading.Lock()

    def hold(self, key: str, data: bytes) -> None:
        """As if somebody had put it into "bucket"."""
        with self._lock:
            self._store("bucket", key, data, None)

    def held(self) -> dict[str, bytes]:
        return {key: found.data for key, found in self.buckets["bucket"].items()}

    def __call__(self, request) -> Answer:
        as_json = request.path.startswith(("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/"))
        if request.path == "/token" or request.path.startswith(
            "/computeMetadata/v1/instance/service-accounts/"
        ):
            return _as_json({"access_token": self.bearer, "expires_in": self.lives_s, "token_type": "Bearer"})
        try:
            if self.bearer is not None and request.headers.get("authorization") != f"Bearer {self.bearer}":
                raise Refused(401, "AuthenticationRequired")
            with self._lock:
                return self._json(request) if as_json else self._xml(request)
        except Refused as why:
            told = {"error": {"code": why.status, "message": why.code}}
            body = json.dumps(told) if as_json else f"<Error><Code>{why.code}</Code></Error>"
            return (
                why.status,
                body.encode(),
                {"content-type": "application/json" if as_json else "application/xml"},
            )

    # what both APIs do

    def _bucket(self, name: str) -> dict[str, Stored]:
        if name not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        return self.buckets[name]

    def _stored(self, bucket: str, name: str) -> Stored:
        found = self._bucket(bucket).get(name)
        if found is None:
            raise Refused(404, "NoSuchKey")
        return found

    def _store(self, bucket: str, name: str, data: bytes, only_if: str | None) -> Stored:
        """only_if: the generation that the object must have, "0" for none."""
        objects = self._bucket(bucket)
        held = str(objects[name].generation) if name in objects else "0"
        if only_if is not None and only_if != held:
            raise Refused(412, "PreconditionFailed")
        objects[name] = made = Stored(data, next(self._numbers))
        return made

    def _delete(self, bucket: str, name: str) -> None:
        self._stored(bucket, name)
        del self.buckets[bucket][name]

    def _page(self, bucket: str, prefix: str, after: str, most: int) -> tuple[list[str], str]:
        """(names, the name to go on behind or "")."""
        names = sorted(name for name in self._bucket(bucket) if name.startswith(prefix) and name > after)
        most = min(most, self.page_keys)
        return names[:most], names[most - 1] if len(names) > most else ""

    def _read(self, request, found: Stored) -> Answer:
        headers = {
            "etag": f'"{found.md5.hex()}"',
            "x-goog-generation": str(found.generation),
            "last-modified": formatdate(found.generation / 1e6, usegmt=True),
            "content-type": "application/octet-stream",
        }
        span = request.headers.get("range")
        if span is None or request.method == "HEAD":
            return 200, found.data, headers
        low, _, high = span.removeprefix("bytes=").partition("-")
        begin, end = int(low), min(int(high or len(found.data)), len(found.data) - 1)
        if begin >= len(found.data):
            raise Refused(416, "InvalidRange")
        headers["content-range"] = f"bytes {begin}-{end}/{len(found.data)}"
        return 206, found.data[begin : end + 1], headers

    # XML: /bucket/name

    def _xml(self, request) -> Answer:
        bucket, _, name = request.path[1:].partition("/")
        query, method = request.query, request.method
        if not name and method == "GET":
            return self._xml_list(bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._xml_upload(request, bucket, name)
        if method in ("GET", "HEAD"):
            return self._read(request, self._stored(bucket, name))
        if method == "DELETE":
            self._delete(bucket, name)
            return 204, b"", {}
        if method != "PUT":
            raise Refused(405, "MethodNotAllowed")
        data = request.body
        if source := request.headers.get("x-goog-copy-source"):
            data = self._stored(*unquote(source).lstrip("/").split("/", 1)).data
        made = self._store(bucket, name, data, request.headers.get("x-goog-if-generation-match"))
        headers = {"etag": f'"{made.md5.hex()}"', "x-goog-generation": str(made.generation)}
        return 200, b"<CopyObjectResult/>" if source else b"", headers

    def _xml_list(self, bucket: str, query: dict[str, str]) -> Answer:
        after = bytes.fromhex(query.get("continuation-token", "")).decode() or query.get("start-after", "")
        names, more = self._page(bucket, query.get("prefix", ""), after, int(query.get("max-keys", 1000)))
        encoded = query.get("encoding-type") == "url"
        written, told = (quote, "<EncodingType>url</EncodingType>") if encoded else (escape, "")
        entries = [
            f'<Contents><Key>{written(name)}</Key><Size>{len(found.data)}</Size><ETag>"{found.md5.hex()}"</ETag>'
            f"<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
            for name, found in ((name, self._stored(bucket, name)) for name in names)
        ]
        token = f"<NextContinuationToken>{more.encode().hex()}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult>{told}{token}{''.join(entries)}</ListBucketResult>"
        return 200, body.encode(), {"content-type": "application/xml"}

    def _xml_upload(self, request, bucket: str, name: str) -> Answer:
        query = request.query
        if "uploads" in query:
            number = self._begin(bucket, name, absent=False)
            body = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            return 200, body.encode(), {}
        upload = self.uploads.get(query["uploadId"])
        if upload is None:
            raise Refused(404, "NoSuchUpload")
        if request.method == "PUT":
            upload.parts[int(query["partNumber"])] = request.body
            return 200, b"", {"etag": f'"{hashlib.md5(request.body, usedforsecurity=False).hexdigest()}"'}
        del self.uploads[query["uploadId"]]
        if request.method == "DELETE":
            return 204, b"", {}
        made = self._store(bucket, name, b"".join(upload.parts[k] for k in sorted(upload.parts)), None)
        body = f'<CompleteMultipartUploadResult><ETag>"{made.md5.hex()}-x"</ETag></CompleteMultipartUploadResult>'
        return 200, body.encode(), {"x-goog-generation": str(made.generation)}

    def _begin(self, bucket: str, name: str, *, absent: bool) -> str:
        self._bucket(bucket)
        number = f"upload-{next(self._numbers)}"
        self.uploads[number] = Upload(bucket, name, absent, {})
        return number

    # JSON: /storage/v1/b/<bucket>/o/<name>, with /upload before it to write and /download to read

    def _json(self, request) -> Answer:
        where = request.target.partition("?")[0].partition("/storage/v1/b")[2].strip("/").split("/")
        bucket, *rest = [unquote(part) for part in where]
        query, method = request.query, request.method
        if request.path.startswith("/upload/"):
            return self._json_upload(request, bucket)
        if not rest:
            self._bucket(bucket)
            return _as_json({"kind": "storage#bucket", "name": bucket})
        if rest == ["o"]:
            return self._json_list(bucket, query)
        name = rest[1]
        if "rewriteTo" in rest:
            made = self._store(
                rest[4], rest[6], self._stored(bucket, name).data, query.get("ifGenerationMatch")
            )
            return _as_json({"done": True, "resource": _resource(rest[4], rest[6], made)})
        if method == "DELETE":
            self._delete(bucket, name)
            return 204, b"", {}
        found = self._stored(bucket, name)
        if query.get("alt") == "media":
            return self._read(request, found)
        return _as_json(_resource(bucket, name, found))

    def _json_list(self, bucket: str, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        if delimiter:  # one page: gcsfs asks so for a folder, the first entry alone
            names, more = self._page(bucket, prefix, "", 10**9)[0], ""
            cut = [name.find(delimiter, len(prefix)) for name in names]
            folders = sorted({name[: end + 1] for name, end in zip(names, cut, strict=True) if end >= 0})
            names = [name for name, end in zip(names, cut, strict=True) if end < 0]
        else:
            folders = []
            names, more = self._page(
                bucket, prefix, query.get("pageToken", ""), int(query.get("maxResults", 1000))
            )
        items = [_resource(bucket, name, self._stored(bucket, name)) for name in names]
        page = {"kind": "storage#objects", "items": items, "prefixes": folders}
        return _as_json({**page, **({"nextPageToken": more} if more else {})})

    def _json_upload(self, request, bucket: str) -> Answer:
        query = request.query
        if "upload_id" in query:
            return self._resume(request, query["upload_id"])
        absent = query.get("ifGenerationMatch")
        if query["uploadType"] == "resumable":
            name = query.get("name") or json.loads(request.body)["name"]
            number = self._begin(bucket, name, absent=absent == "0")
            host = request.headers["host"]
            place = f"http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            return 200, b"", {"location": place}
        if query["uploadType"] == "media":
            name, data = query["name"], request.body
        else:
            name, data = _parse_related(request)
        return _as_json(_resource(bucket, name, self._store(bucket, name, data, absent)))

    def _resume(self, request, number: str) -> Answer:
        upload = self.uploads.get(number)
        if upload is None:
            raise Refused(404, "NoSuchUpload")
        if request.method == "DELETE":
            del self.uploads[number]
            return 499, b"", {}
        span, _, total = request.headers["content-range"].removeprefix("bytes ").partition("/")
        if span != "*":
            upload.parts[int(span.partition("-")[0])] = request.body
        data = b"".join(upload.parts[begin] for begin in sorted(upload.parts))
        if total == "*" or len(data) < int(total):
            return 308, b"", {"range": f"bytes=0-{len(data) - 1}"} if data else {}
        del self.uploads[number]
        made = self._store(upload.bucket, upload.name, data, "0" if upload.absent else None)
        return _as_json(_resource(upload.bucket, upload.name, made))


def _resource(bucket: str, name: str, found: Stored) -> dict[str, object]:
    when = "2023-11-14T22:13:20.000Z"
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(found.data)),
        "generation": str(found.generation),
        "metageneration": "1",
        "etag": base64.b64encode(str(found.generation).encode()).decode(),
        "md5Hash": base64.b64encode(found.md5).decode(),
        "timeCreated": when,
        "updated": when,
        "storageClass": "STANDARD",
    }


def _parse_related(request) -> tuple[str, bytes]:
    """Of a multipart/related body: the name out of its metadata, and the bytes, which may hold anything."""
    kind = request.headers["content-type"]
    boundary = b"--" + kind.partition("boundary=")[2].strip('"').encode()
    mark = b"\r\n" if request.body.startswith(boundary + b"\r\n") else b"\n"
    _, meta, rest = request.body.split(boundary + mark, 2)
    data = rest.partition(mark * 2)[2]
    return json.loads(meta.partition(mark * 2)[2])["name"], data[: data.rindex(mark + boundary + b"--")]


def _as_json(value: object) -> Answer:
    return 200, json.dumps(value).encode(), {"content-type": "application/json; charset=UTF-8"}
