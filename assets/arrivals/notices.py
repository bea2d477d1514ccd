"""Notices of arrivals, as stores send them: the objects that a message names.

    S3            {"Records": [{"eventName": "ObjectCreated:Put", "s3": {...}}]}, keys URL-encoded; s3:TestEvent;
                  in an envelope of SNS or SQS, or as EventBridge has it ("detail-type": "Object Created")
    GCS           Pub/Sub: {"message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId", "objectId"}}}
    Azure         Event Grid: [{"eventType": "Microsoft.Storage.BlobCreated", "data": {"url": ...}}], CloudEvents too
    anybody       {"key": "photos/1.jpg"} relative to the source's place, or {"uri": "s3://bucket/raw/photos/1.jpg"}

A notice is only a hint: the store is asked for the objects that are there now. So notices may come twice, in any order,
or late. A notice of a delete is passed over (`reconcile` finds what has vanished).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from loader.dataset.log.entries import DAMAGED
from loader.json_text import is_text, parse_json

Json = Mapping[str, Any]
_DEPTH = 4  # envelopes in one another
_ACCEPTED = 'accepted are notices of S3, Google Cloud Storage and Azure, or {"key": "photos/1.jpg"}, keys as UTF-8 text'


class Unreadable(ValueError):
    """A message that is not one of the known forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An object that was written."""

    key: str
    """Key of the object."""
    bucket: str = ""
    """Bucket of the object; "" where the notice has only a key relative to the source's place."""
    uri: str = ""
    """URI of the object; "" for none."""


def read_notices(text: bytes | str) -> list[Notice]:
    """Return the objects that a message says were written; none of a delete or a test. Raises: Unreadable alone."""
    try:
        return [_checked(one) for one in _read(parse_json(text), 0)]
    except Unreadable:
        raise
    except (*DAMAGED, IndexError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}; {_ACCEPTED}") from error


def _checked(one: Notice) -> Notice:
    """Return the notice. Raises: Unreadable where its names are no text, or it names nothing."""
    for name in ("key", "bucket", "uri"):
        if not is_text(value := getattr(one, name)):
            raise Unreadable(f"{name} is {value!r:.100}; {_ACCEPTED}")
    if not (one.key or one.uri):
        raise Unreadable(f"an empty key; {_ACCEPTED}")
    return one


def relative_key(notice: Notice, place: str) -> str | None:
    """Return the object's key in the place of that URL; None for one that is elsewhere."""
    base = place.rstrip("/") + "/"
    if notice.uri:
        return notice.uri[len(base) :] if notice.uri.startswith(base) else None
    if not notice.bucket:
        return notice.key
    parts = urlsplit(base)
    folder = parts.path.lstrip("/")
    same = parts.netloc.partition("@")[0] == notice.bucket
    return notice.key[len(folder) :] if same and notice.key.startswith(folder) else None


def _read(body: Any, depth: int) -> Iterator[Notice]:
    if depth > _DEPTH:
        raise Unreadable(f"envelopes in envelopes; {_ACCEPTED}")
    if isinstance(body, list):
        for one in body:
            yield from _read(one, depth + 1)
        return
    if not isinstance(body, dict):
        raise Unreadable(f"a {type(body).__name__}, expected a JSON object; {_ACCEPTED}")
    for mark, read in _FORMS.items():
        if mark in body:
            yield from read(body, depth)
            return
    has = ", ".join(name[:40] for name in sorted(body)[:8])
    raise Unreadable(f"no known form of notice; it has {has or 'no fields'}; {_ACCEPTED}")


def _s3(body: Json, depth: int) -> Iterator[Notice]:
    for record in body["Records"]:
        if "body" in record and "s3" not in record:  # what a function that reads a queue is given
            yield from _read(parse_json(record["body"]), depth + 1)
        elif "ObjectCreated" in record["eventName"]:
            told = record["s3"]
            yield Notice(key=unquote_plus(told["object"]["key"]), bucket=told["bucket"]["name"])


def _sns(body: Json, depth: int) -> Iterator[Notice]:
    yield from _read(parse_json(body["Message"]), depth + 1)


def _eventbridge(body: Json, _: int) -> Iterator[Notice]:
    if body["detail-type"] == "Object Created":
        yield Notice(key=body["detail"]["object"]["key"], bucket=body["detail"]["bucket"]["name"])


def _gcs_pushed(body: Json, depth: int) -> Iterator[Notice]:
    yield from _read(body["message"], depth + 1)


def _gcs(body: Json, _: int) -> Iterator[Notice]:
    told = body["attributes"]
    if told["eventType"] == "OBJECT_FINALIZE":
        yield Notice(key=told["objectId"], bucket=told["bucketId"])


def _azure(name: str) -> Callable[[Json, int], Iterator[Notice]]:
    def read(body: Json, _: int) -> Iterator[Notice]:
        if body[name] == "Microsoft.Storage.BlobCreated":
            path = unquote(urlsplit(body["data"]["url"]).path).lstrip("/")
            container, _slash, key = path.partition("/")
            yield Notice(key=key, bucket=container)
        elif not str(body[name]).startswith(("Microsoft.Storage.", "Microsoft.EventGrid.")):
            raise Unreadable(f"an event of {name} {body[name]!r}")

    return read


def _plain(body: Json, _: int) -> Iterator[Notice]:
    yield Notice(key=body.get("key", ""), uri=body.get("uri", ""))


def _test(body: Json, _: int) -> Iterator[Notice]:
    if body["Event"] != "s3:TestEvent":
        raise Unreadable(f"an event {body['Event']!r}")
    yield from ()


# A field that only this form has -> what reads it. The first that fits counts.
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
