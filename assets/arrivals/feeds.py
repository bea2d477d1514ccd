"""Notices of arrivals, from files of JSON lines or an SQS queue.

The store itself is asked for the objects that they name, which wait for a batch like listed ones.

A letter (a file or a message) is taken away when nothing that it names waits any more: it is in a batch, or will never
be. So a tick that is killed loses none, and one that comes twice names what is in a batch already. Of a queue, letters
whose objects wait are hidden for as long as they may wait, and come again: set `maxReceiveCount` of a dead-letter queue
to 10 or more. Of files, the folder's owner is this feed: who wants to keep them copies them elsewhere.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa

from loader.dataset.tables.parquet import put_named_table
from loader.errors import (
    Forbidden,
    ForkedStore,
    InvalidStore,
    MissingDependency,
    ObjectNotFound,
    StoreError,
    Throttled,
    Transient,
)
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from resources.storage import from_environment, open_place

from ..sources import Feed
from .notices import Notice, Unreadable, read_notices, relative_key
from .progress import Progress, Work

if TYPE_CHECKING:
    from collections.abc import Mapping


_HIDDEN_S = 120  # a message, while the tick that received it is at work
_MOST_S = 43_200  # that a queue hides one
_PER_CALL = 10  # messages, by SQS
_TEXT = 4096  # characters of an unreadable notice that are kept
_MOST_BYTES = 64 * 2**20  # of a file of notices


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A file of notices, or a message."""

    name: str
    """Key of the file, or receipt of the message."""
    notices: tuple[Notice, ...]
    """The objects that it names."""
    unreadable: tuple[tuple[int, str, str], ...] = ()
    """(line, text, reason) of every line that makes no sense."""


class Box(Protocol):
    """A place that letters lie in. Every method raises StoreError leaves."""

    url: str
    """URL of the place, without secrets."""

    def letters(self, limit: int, held: Collection[str]) -> Iterator[Letter]:
        """Yield letters, at most about `limit` notices of them, without those named in `held`."""

    def hold(self, names: Sequence[str], seconds: float) -> None:
        """Let these letters wait for at most so long."""

    def remove(self, names: Sequence[str]) -> None:
        """Take these letters away: they are dealt with."""


@contextmanager
def open_box(feed: Feed) -> Iterator[Box]:
    """Yield the feed's box. Raises: InvalidStore; MissingDependency without boto3."""
    url = from_environment(feed.url)
    if urlsplit(url).scheme == "sqs":
        queue = _Queue(url, {name: from_environment(value) for name, value in feed.options.items()})
        try:
            yield queue
        finally:
            queue.close()
        return
    store = open_place(feed.url, feed.options)
    try:
        yield _Files(store, feed.prefix)
    finally:
        store.close()


def letter(name: str, lines: Sequence[bytes | str]) -> Letter:
    """Return the letter of a file's lines, or of a message. Lines that make no sense are set aside."""
    notices: list[Notice] = []
    unreadable: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        try:
            notices += read_notices(line) if line.strip() else []
        except Unreadable as error:
            shown = line[: 4 * _TEXT] if isinstance(line, bytes) else line[:_TEXT].encode(errors="replace")
            unreadable.append((number, shown.decode(errors="replace")[:_TEXT], str(error)[:500]))
    return Letter(name=name, notices=tuple(notices), unreadable=tuple(unreadable))


def set_aside(store: Store, dataset: str, source: str, found: Letter, box: str) -> None:
    """Keep the unreadable lines of a letter, once, in tables/<dataset>/arrivals/<source>/unreadable-<hash>.parquet."""
    # A receipt of a queue is another each time.
    place = found.name if not box.startswith("sqs://") else ""
    rows = [
        {"box": box, "letter": place, "line": line, "text": text, "reason": reason}
        for line, text, reason in found.unreadable
    ]
    folder = f"tables/{dataset}/arrivals/{source}"
    put_named_table(store, folder, pa.Table.from_pylist(rows, schema=_UNREADABLE), "unreadable")


_UNREADABLE = pa.schema(
    [
        ("box", pa.string()),
        ("letter", pa.string()),
        ("line", pa.int64()),
        ("text", pa.string()),
        ("reason", pa.string()),
    ]
)


class _Files:
    """Objects below a prefix, each with a notice per line."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.url, self._store, self._prefix = store.url, store, prefix

    def letters(self, limit: int, held: Collection[str]) -> Iterator[Letter]:
        for info in list_place(self._store, self._prefix):
            if limit <= 0:
                return
            if info.key in held or info.key.rsplit("/", 1)[-1].startswith("."):
                continue
            if info.nbytes > _MOST_BYTES:  # it would lie in the memory of the code server
                why = f"a file of {info.nbytes} bytes; accepted are {_MOST_BYTES}, in lines of JSON: split it"
                found = Letter(name=info.key, notices=(), unreadable=((0, "", why),))
            else:
                found = letter(info.key, bytes(self._store.get(info.key).data).split(b"\n"))
            limit -= max(1, len(found.notices))
            yield found

    def hold(self, names: Sequence[str], seconds: float) -> None:
        """Do nothing: the source's state names them."""

    def remove(self, names: Sequence[str]) -> None:
        self._store.delete_many(names)


class _Queue:
    """`sqs://<region>/<name>`, `sqs://<name>`."""

    def __init__(self, url: str, options: "Mapping[str, str]") -> None:
        self.url = url
        parts = urlsplit(url)
        region, name = (parts.netloc, parts.path.strip("/")) if parts.path.strip("/") else ("", parts.netloc)
        try:
            import boto3
            import botocore.config  # type: ignore[import-untyped]
            import botocore.exceptions  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependency(f"{url} needs boto3: pip install 'penstock-data[s3]'") from error
        self._errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        given: dict[str, Any] = {"region_name": region} if region else {}
        given |= options
        profile = given.pop("profile_name", None)
        quick = botocore.config.Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 3})
        try:
            session = boto3.Session(profile_name=profile)
            self._client = session.client("sqs", config=quick, **given)
            self._queue = self._client.get_queue_url(QueueName=name)["QueueUrl"]
        except TypeError as error:
            raise InvalidStore(
                f"{url}: {error}; options are those of boto3's client, and profile_name"
            ) from None
        except self._errors as error:
            raise self._said("find", error) from None

    def letters(self, limit: int, held: Collection[str]) -> Iterator[Letter]:
        while limit > 0:
            answer = self._call("receive_message", MaxNumberOfMessages=_PER_CALL, VisibilityTimeout=_HIDDEN_S)
            messages = answer.get("Messages", [])
            for message in messages:
                found = letter(message["ReceiptHandle"], [message["Body"]])
                limit -= max(1, len(found.notices))
                yield found
            if not messages:
                return

    def hold(self, names: Sequence[str], seconds: float) -> None:
        hidden_s = min(_MOST_S, int(seconds) + _HIDDEN_S)
        for entries in _entries(names):
            for entry in entries:
                entry["VisibilityTimeout"] = hidden_s
            self._call("change_message_visibility_batch", Entries=entries)

    def remove(self, names: Sequence[str]) -> None:
        for entries in _entries(names):
            self._call("delete_message_batch", Entries=entries)

    def close(self) -> None:
        """Release connections."""
        self._client.close()

    def _call(self, verb: str, **options: Any) -> "Mapping[str, Any]":
        call = cast(Callable[..., "Mapping[str, Any]"], getattr(self._client, verb))
        try:
            return call(QueueUrl=self._queue, **options)
        except self._errors as error:
            raise self._said(verb, error) from None

    def _said(self, verb: str, error: Exception) -> Transient:
        return Transient(f"cannot {verb.replace('_', ' ')} of the queue {self.url}: {error}")


def _entries(names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(names), _PER_CALL):
        yield [
            {"Id": str(number), "ReceiptHandle": name}
            for number, name in enumerate(names[start : start + _PER_CALL])
        ]


_AT_ONCE = 16  # requests
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Mail:
    """Letters that a tick has read."""

    box: Box
    """Place that they lie in."""
    letters: list[Letter] = field(default_factory=list)
    """The letters, in the order in which they were read."""
    uris: dict[str, list[str]] = field(default_factory=dict)
    """Name of a letter -> URIs that it names."""
    open: set[str] = field(default_factory=set)
    """Names of letters that are not read to their end."""

    def settle(self, progress: Progress) -> list[str]:
        """Return the letters of which nothing waits any more, and tell the progress of the others."""
        done = []
        for one in self.letters:
            if one.name in self.open:
                continue
            progress.read.pop(one.name, None)
            if any(uri in progress.waiting for uri in self.uris[one.name]):
                progress.held.append(one.name)
            else:
                done.append(one.name)
        return done

    def take_away(self, done: Sequence[str], wait_s: float) -> None:
        """Remove those letters. What they named is in manifests by now. wait_s: how long the others may wait."""
        gone = set(done)
        self.box.hold(
            [one.name for one in self.letters if one.name not in gone and one.name not in self.open], wait_s
        )
        self.box.remove(done)


def read_mail(work: Work, box: Box) -> Mail:
    """Read letters, and let the objects that they name wait. One HEAD per object, at most `max_notices` of them.

    Raises: StoreError when the box, or the place of the objects, does not answer.
    """
    mail, progress = Mail(box=box), work.progress
    read: dict[str, int] = {}
    refused: list[str] = []
    if not (room := work.room()):
        return mail
    left = min(room, work.budget.max_notices)
    keys: dict[str, None] = {}  # each once, in their order
    place = work.place.url.rstrip("/")
    for one in box.letters(left, frozenset(progress.held)):
        mail.letters.append(one)
        mail.uris[one.name] = []
        if one.unreadable:
            set_aside(work.dataset.store, work.dataset.name, work.source.name, one, box.url)
            where = "a message" if box.url.startswith("sqs://") else f"{box.url}/{one.name}"
            work.step.set_aside += [f"{where}, line {line}: {why}" for line, _, why in one.unreadable]
        begin = min(progress.read.get(one.name, 0), len(one.notices))
        end = min(len(one.notices), begin + left)
        for position, notice in enumerate(one.notices):
            key = relative_key(notice, work.place.url)
            if key is not None:
                mail.uris[one.name].append(f"{place}/{key}")
            if begin <= position < end and key is None:
                refused.append("elsewhere")
            elif begin <= position < end and key is not None:
                keys[key] = None
        refused += ["unreadable_notice"] * len(one.unreadable) if begin == 0 else []
        left -= end - begin
        if end < len(one.notices):
            mail.open.add(one.name)
            if not box.url.startswith("sqs://"):
                read[one.name] = end
    _take_in(work, list(keys), room)
    # Not before: where the place does not answer, nothing of these letters has been read.
    progress.read |= read
    for reason in refused:
        progress.refused(reason)
    return mail


def _take_in(work: Work, keys: Sequence[str], room: int) -> None:
    why, wanted = work.source.sieve(), []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(lambda key: _now(work.place, key), keys):
            reason = why(found) if isinstance(found, ObjectInfo) else found
            if reason or isinstance(found, str):
                work.progress.refused(reason)
            else:
                wanted.append(found)
    work.admit(wanted, room)


def _now(place: Store, key: str) -> ObjectInfo | str:
    """Return the object at the key now, or why there is none. Raises: the errors that are of all keys."""
    try:
        return place.head(key)
    except ObjectNotFound:
        return "gone"
    except Forbidden:
        return "forbidden"
    except InvalidStore:
        return "not_media"
    except (Throttled, Transient, ForkedStore):
        raise
    except (
        StoreError
    ) as error:  # of this key, such as links that lead in a circle: reconcile looks at it again
        _log.warning("a notice names %s/%s, which cannot be looked at: %s", place.url, key, error)
        return "unanswered"
