"""Parse notices of new objects, in the forms that stores send.

S3            {"Records": [{"eventName": "ObjectCreated:Put", "s3": {...}}]}, keys URL-encoded; s3:TestEvent;
              in an envelope of SNS or SQS, or by EventBridge ("detail-type": "Object Created")
GCS           Pub/Sub: {"message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId", "objectId"}}}
Azure         Event Grid: [{"eventType": "Microsoft.Storage.BlobCreated", "data": {"url": ...}}], CloudEvents too
plain         {"key": "photos/1.jpg"} relative to the source, or {"uri": "s3://bucket/raw/photos/1.jpg"}
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from loader.dataset.log.entries import DAMAGED
from loader.json_text import is_text, parse_json

Json = Mapping[str, Any]
_DEPTH = 4  # nested envelopes
_ACCEPTED = 'accepted are notices of S3, Google Cloud Storage and Azure, or {"key": "photos/1.jpg"}, keys as UTF-8 text'


class UnreadableNotice(ValueError):
    """A message in an unknown format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    key: str
    """Object key; "" if `uri` is set."""
    bucket: str = ""
    """Bucket; "" if the key is relative to the source."""
    uri: str = ""
    """Full URI; "" if `key` is set."""


def read_notices(text: bytes | str) -> list[Notice]:
    """Return the objects that a message reports as written; [] for a delete or a test. Raises: UnreadableNotice."""
    try:
        return [_check_notice(notice) for notice in _read(parse_json(text), 0)]
    except UnreadableNotice:
        raise
    except (*DAMAGED, IndexError) as error:
        raise UnreadableNotice(f"{type(error).__name__}: {error}; {_ACCEPTED}") from error


def _check_notice(notice: Notice) -> Notice:
    """Return the notice if it names an object. Bodies are untrusted: a field may have any type."""
    for name in ("key", "bucket", "uri"):
        if not is_text(value := getattr(notice, name)):
            raise UnreadableNotice(f"{name} is {value!r:.100}; {_ACCEPTED}")
    if not (notice.key or notice.uri):
        raise UnreadableNotice(f"an empty key; {_ACCEPTED}")
    return notice


def relative_key(notice: Notice, place: str) -> str | None:
    """Return the object's key relative to the URL `place`; None if the object is elsewhere."""
    base = place.rstrip("/") + "/"
    if notice.uri:
        if notice.uri.startswith(base):
            return notice.uri[len(base) :]
        return None
    if not notice.bucket:
        return notice.key
    parts = urlsplit(base)
    folder = parts.path.lstrip("/")
    # Azure's URLs name container@account.
    same = parts.netloc.partition("@")[0] == notice.bucket
    if same and notice.key.startswith(folder):
        return notice.key[len(folder) :]
    return None


def _read(body: Any, depth: int) -> Iterator[Notice]:
    """Yield the notices of a parsed body. depth: envelopes around it."""
    if depth > _DEPTH:
        raise UnreadableNotice(f"envelopes in envelopes; {_ACCEPTED}")
    if isinstance(body, list):
        for item in body:
            yield from _read(item, depth + 1)
        return
    if not isinstance(body, dict):
        raise UnreadableNotice(f"a {type(body).__name__}, expected a JSON object; {_ACCEPTED}")
    for mark, read in _FORMS.items():
        if mark in body:
            yield from read(body, depth)
            return
    has = ", ".join(name[:40] for name in sorted(body)[:8])
    raise UnreadableNotice(f"no known form of notice; fields: {has or 'none'}; {_ACCEPTED}")


def _s3(body: Json, depth: int) -> Iterator[Notice]:
    for record in body["Records"]:
        if "body" in record and "s3" not in record:  # the form that a Lambda function receives from a queue
            yield from _read(parse_json(record["body"]), depth + 1)
        elif "ObjectCreated" in record["eventName"]:
            event = record["s3"]
            # S3 encodes keys as forms do: a space is "+".
            yield Notice(key=unquote_plus(event["object"]["key"]), bucket=event["bucket"]["name"])


def _sns(body: Json, depth: int) -> Iterator[Notice]:
    yield from _read(parse_json(body["Message"]), depth + 1)


def _eventbridge(body: Json, _: int) -> Iterator[Notice]:
    if body["detail-type"] == "Object Created":
        # EventBridge does not encode keys, unlike S3's own notices.
        yield Notice(key=body["detail"]["object"]["key"], bucket=body["detail"]["bucket"]["name"])


def _gcs_pushed(body: Json, depth: int) -> Iterator[Notice]:
    yield from _read(body["message"], depth + 1)


def _gcs(body: Json, _: int) -> Iterator[Notice]:
    attributes = body["attributes"]
    if attributes["eventType"] == "OBJECT_FINALIZE":
        yield Notice(key=attributes["objectId"], bucket=attributes["bucketId"])


def _azure(name: str) -> Callable[[Json, int], Iterator[Notice]]:
    """Return a parser of Azure's events. name: field of the type, `eventType` (Event Grid) or `type` (CloudEvents)."""

    def read(body: Json, _: int) -> Iterator[Notice]:
        if body[name] == "Microsoft.Storage.BlobCreated":
            path = unquote(urlsplit(body["data"]["url"]).path).lstrip("/")
            container, _slash, key = path.partition("/")
            yield Notice(key=key, bucket=container)
        # Other events of these two, such as deletions, are not arrivals.
        elif not str(body[name]).startswith(("Microsoft.Storage.", "Microsoft.EventGrid.")):
            raise UnreadableNotice(f"an event of {name} {body[name]!r}")

    return read


def _plain(body: Json, _: int) -> Iterator[Notice]:
    yield Notice(key=body.get("key", ""), uri=body.get("uri", ""))


def _test(body: Json, _: int) -> Iterator[Notice]:
    # S3 sends one when notices are set up.
    if body["Event"] != "s3:TestEvent":
        raise UnreadableNotice(f"an event {body['Event']!r}")
    yield from ()


# Field that only one form has -> the parser of that form. The first match counts.
_FORMS: dict[str, Callable[[Json, int], Iterator[Notice]]] = {
    "Records": _s3,
    "Message": _sns,
    "detail-type": _eventbridge,
    "message": _gcs_pushed,
    "attributes": _gcs,
    "eventType": _azure("eventType"),
    "Event": _test,
    "type": _azure("type"),
    "key": _plain,
    "uri": _plain,
}
