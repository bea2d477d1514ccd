"""Feeds of notices: JSON-lines files or an SQS queue that announce new objects.

A notice is only a hint: penstock looks each object up in the store. A message is acknowledged once none of its objects
waits or is unreadable. Until then a queue hides the message and delivers it again, so a killed tick loses nothing.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

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
from loader.storage.threads import DaemonPool
from resources.storage import from_environment, open_place

from ..sources import Feed
from .notices import Notice, UnreadableNotice, read_notices, relative_key
from .progress import Progress, SourceTick

if TYPE_CHECKING:
    from collections.abc import Mapping


_HIDDEN_S = 120  # seconds that a message is hidden while a tick works on it
_RETRY_S = 600  # seconds until a message of an unreadable object is read again
_MOST_S = 43_200  # longest time that SQS hides a message
_PER_CALL = 10  # messages per SQS call
_TEXT = 4096  # characters kept of an unreadable notice
_REASON = 500  # characters kept of the reason
_MOST_BYTES = 64 * 2**20  # largest file of notices


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A file of notices, or one message from a queue."""

    name: str
    """Key of the file, or receipt handle of the message."""
    notices: tuple[Notice, ...]
    """Message's notices, one per object."""
    unreadable: tuple[tuple[int, str, str], ...] = ()
    """(line, text, reason) of each unreadable line."""


class MessageSource(Protocol):
    """A folder or queue of messages. Every method raises subclasses of StoreError."""

    url: str
    """URL, without secrets."""

    def messages(self, limit: int, held: Collection[str]) -> Iterator[Message]:
        """Yield messages with about `limit` notices in total, except the messages named in `held`."""

    def hide(self, names: Sequence[str], seconds: float) -> None:
        """Hide these messages from later reads for about `seconds`. names: as `Message.name`."""

    def remove(self, names: Sequence[str]) -> None:
        """Delete these messages."""


@contextmanager
def open_message_source(feed: Feed) -> Iterator[MessageSource]:
    """Yield the feed's message source. Its URL and options may be `dg.EnvVar`s.

    Raises: InvalidStore; MissingDependency if boto3 is not installed.
    """
    url = from_environment(feed.url)
    # Not `urlsplit`, which raises ValueError for some texts: the URL may come from the environment.
    scheme, _, _ = url.partition(":")
    if scheme.lower() == "sqs":
        queue = _Queue(url, {name: from_environment(value) for name, value in feed.options.items()})
        try:
            yield queue
        finally:
            queue.close()
        return
    store = open_place(feed.url, feed.options)  # which reads the variables, too
    try:
        yield _Files(store, feed.prefix)
    finally:
        store.close()


def parse_message(name: str, lines: Sequence[bytes | str]) -> Message:
    """Return the message parsed from these lines; unreadable lines are listed separately."""
    notices: list[Notice] = []
    unreadable: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        try:
            notices += read_notices(line) if line.strip() else []
        except UnreadableNotice as error:
            if isinstance(line, bytes):
                shown = line[: 4 * _TEXT]  # a character has 4 bytes at most
            else:
                shown = line[:_TEXT].encode(errors="replace")
            text = shown.decode(errors="replace")[:_TEXT]
            unreadable.append((number, text, str(error)[:_REASON]))
    return Message(name=name, notices=tuple(notices), unreadable=tuple(unreadable))


def set_aside(
    store: Store,
    dataset: str,
    source: str,
    message: Message,
    feed_url: str,
) -> None:
    """Store a message's unreadable lines once, as a table in tables/<dataset>/arrivals/<source>/."""
    # A queue gives a message a new receipt handle at each delivery, which would store the lines again.
    name = ""
    if not feed_url.startswith("sqs://"):
        name = message.name
    rows = [
        {"box": feed_url, "letter": name, "line": line, "text": text, "reason": reason}
        for line, text, reason in message.unreadable
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
    """Objects below a prefix, each with one notice per line."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.url = store.url
        self._store = store
        self._prefix = prefix

    def messages(self, limit: int, held: Collection[str]) -> Iterator[Message]:
        for info in list_place(self._store, self._prefix):
            if limit <= 0:
                return
            file_name = info.key.rsplit("/", 1)[-1]
            if info.key in held or file_name.startswith("."):  # a hidden file
                continue
            if info.nbytes > _MOST_BYTES:  # it is read into the memory of Dagster's code server
                why = f"a file of {info.nbytes} bytes; split it, at most {_MOST_BYTES} bytes of JSON lines are accepted"
                message = Message(name=info.key, notices=(), unreadable=((0, "", why),))
            else:
                message = parse_message(info.key, bytes(self._store.get(info.key).data).split(b"\n"))
            limit -= max(1, len(message.notices))  # a message without notices costs a read, too
            yield message

    def hide(self, names: Sequence[str], seconds: float) -> None:
        """Do nothing: a tick leaves files out by `Progress.held` and `Progress.retries`."""

    def remove(self, names: Sequence[str]) -> None:
        self._store.delete_many(names)


class _Queue:
    """An SQS queue: `sqs://<region>/<name>` or `sqs://<name>`."""

    def __init__(self, url: str, options: "Mapping[str, str]") -> None:
        self.url = url
        _, _, place = url.partition("://")
        segments = place.strip("/").split("/", 1)
        name = segments[-1]
        region = ""
        if len(segments) > 1:
            region = segments[0]
        try:
            import boto3
            import botocore.config  # type: ignore[import-untyped]
            import botocore.exceptions  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependency(f"{url} needs boto3: pip install 'penstock-data[s3]'") from error
        self._errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        settings: dict[str, Any] = {}
        if region:
            settings = {"region_name": region}
        settings |= options
        profile = settings.pop("profile_name", None)
        quick = botocore.config.Config(
            connect_timeout=5,
            read_timeout=20,
            retries={"total_max_attempts": 3},
        )
        try:
            session = boto3.Session(profile_name=profile)
            self._client = session.client("sqs", config=quick, **settings)
            self._queue = self._client.get_queue_url(QueueName=name)["QueueUrl"]
        except TypeError as error:
            raise InvalidStore(
                f"{url}: {error}; accepted options are boto3's client options and profile_name"
            ) from None
        except self._errors as error:
            raise self._failure("find", error) from None

    def messages(self, limit: int, held: Collection[str]) -> Iterator[Message]:
        while limit > 0:
            answer = self._call("receive_message", MaxNumberOfMessages=_PER_CALL, VisibilityTimeout=_HIDDEN_S)
            messages = answer.get("Messages", [])
            for message in messages:
                parsed = parse_message(message["ReceiptHandle"], [message["Body"]])
                limit -= max(1, len(parsed.notices))
                yield parsed
            if not messages:
                return

    def hide(self, names: Sequence[str], seconds: float) -> None:
        # One tick's time more: a message that is delivered just before its objects are due is hidden for as long again.
        hidden_s = min(_MOST_S, int(seconds) + _HIDDEN_S)
        for entries in _entries(names):
            for entry in entries:
                entry["VisibilityTimeout"] = hidden_s
            self._call("change_message_visibility_batch", Entries=entries)

    def remove(self, names: Sequence[str]) -> None:
        for entries in _entries(names):
            self._call("delete_message_batch", Entries=entries)

    def close(self) -> None:
        self._client.close()

    def _call(self, verb: str, **options: Any) -> "Mapping[str, Any]":
        call = cast(Callable[..., "Mapping[str, Any]"], getattr(self._client, verb))
        try:
            return call(QueueUrl=self._queue, **options)
        except self._errors as error:
            raise self._failure(verb, error) from None

    def _failure(self, verb: str, error: Exception) -> Transient:
        return Transient(f"cannot {verb.replace('_', ' ')} of the queue {self.url}: {error}")


def _entries(names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the entries of SQS's batch calls. names: receipt handles."""
    for start in range(0, len(names), _PER_CALL):
        yield [
            {"Id": str(number), "ReceiptHandle": name}
            for number, name in enumerate(names[start : start + _PER_CALL])
        ]


_AT_ONCE = 16  # parallel requests
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ReceivedMessages:
    """Messages that one tick has read."""

    source: MessageSource
    messages: list[Message] = field(default_factory=list)
    """Messages in the order of reading."""
    uris: dict[str, list[str]] = field(default_factory=dict)
    """Message name -> announced URIs."""
    open: set[str] = field(default_factory=set)
    """Names of messages with unread notices."""
    unreadable: set[str] = field(default_factory=set)
    """Names of messages with objects that the store refused to show."""

    def settle(self, progress: Progress, now_us: int) -> list[str]:
        """Return the names of finished messages; add messages with waiting objects to `progress.held`."""
        done = []
        for message in self.messages:
            if message.name in self.open:
                continue
            progress.read.pop(message.name, None)
            # A file that earlier ticks read in part has a retry if one of its first objects was unreadable.
            if message.name in self.unreadable or message.name in progress.retries:
                self.unreadable.add(message.name)
                if not _is_queue(self.source):
                    progress.retries[message.name] = now_us + _RETRY_S * 1_000_000
            elif any(uri in progress.waiting for uri in self.uris[message.name]):
                progress.held.append(message.name)
            else:
                done.append(message.name)
        return done

    def acknowledge(self, done: Sequence[str], wait_s: float) -> None:
        """Delete these messages; hide the other fully read ones for about `wait_s` seconds, or until their retry."""
        settled = self.open | self.unreadable | set(done)
        self.source.hide([one.name for one in self.messages if one.name not in settled], wait_s)
        self.source.hide(sorted(self.unreadable - self.open), _RETRY_S)
        self.source.remove(done)


def _is_queue(source: MessageSource) -> bool:
    # A queue gives a message another name at each delivery.
    return source.url.startswith("sqs://")


def receive_messages(work: SourceTick, source: MessageSource) -> ReceivedMessages:
    """Read new messages, and queue the announced objects for a batch. Costs one HEAD per object.

    Raises: StoreError if the feed or the objects' store does not respond.
    """
    received = ReceivedMessages(source=source)
    progress = work.progress
    read: dict[str, int] = {}
    refused: list[str] = []
    if not (room := work.room()):
        return received
    n_left = min(room, work.budget.max_notices)
    keys: dict[str, None] = {}  # each key once, in order
    place = work.place.url.rstrip("/")
    now_us = work.dataset.now_us
    # A retry of a file in part is set at its end: the rest is read now.
    later = {name for name, at_us in progress.retries.items() if at_us > now_us and name not in progress.read}
    for message in source.messages(n_left, later.union(progress.held)):
        received.messages.append(message)
        received.uris[message.name] = []
        if message.unreadable:
            set_aside(work.dataset.store, work.dataset.name, work.source.name, message, source.url)
            if _is_queue(source):
                where = "a message"
            else:
                where = f"{source.url}/{message.name}"
            work.step.set_aside += [f"{where}, line {line}: {why}" for line, _, why in message.unreadable]
        begin = min(progress.read.get(message.name, 0), len(message.notices))
        end = min(len(message.notices), begin + n_left)
        for position, notice in enumerate(message.notices):
            key = relative_key(notice, work.place.url)
            if key is not None:
                received.uris[message.name].append(f"{place}/{key}")
            if begin <= position < end and key is None:
                refused.append("elsewhere")
            elif begin <= position < end and key is not None:
                keys[key] = None
        refused += ["unreadable_notice"] * len(message.unreadable) if begin == 0 else []
        n_left -= end - begin
        if end < len(message.notices):
            received.open.add(message.name)
            if not _is_queue(source):
                read[message.name] = end
    unreadable = {f"{place}/{key}" for key in _admit_keys(work, list(keys), room)}
    # Only now: if the store does not respond, none of these messages counts as read.
    # A retry that is due ends, so no name of a removed file stays.
    progress.retries = {
        name: at_us for name, at_us in progress.retries.items() if at_us > now_us or name in progress.read
    }
    progress.read |= read
    for name, uris in received.uris.items():
        if unreadable.isdisjoint(uris):
            continue
        received.unreadable.add(name)
        if name in progress.read:
            progress.retries[name] = now_us
    for reason in refused:
        progress.refused(reason)
    return received


def _admit_keys(work: SourceTick, keys: Sequence[str], room: int) -> list[str]:
    """Queue the objects at these keys for a batch; return the keys that the store refused to show."""
    sieve = work.source.sieve()
    admitted = []
    unreadable = []
    with DaemonPool(_AT_ONCE, "penstock-feeds") as pool:
        for key, result in zip(
            keys, pool.map(lambda key: _current_object(work.place, key), keys), strict=True
        ):
            if isinstance(result, str):  # the reason for which there is no object
                if result in _UNREADABLE_OBJECT:
                    unreadable.append(key)
                work.progress.refused(result)
                continue
            reason = sieve(result)
            if reason:
                work.progress.refused(reason)
            else:
                admitted.append(result)
    work.admit(admitted, room)
    return unreadable


_UNREADABLE_OBJECT = ("forbidden", "unanswered")
"""Reasons that rights or the store may lift: they say nothing about the object."""


def _current_object(place: Store, key: str) -> ObjectInfo | str:
    """Return the object at this key, or the reason for skipping it."""
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
    except StoreError as error:  # this key's error, such as a symlink loop
        _log.warning("a notice names %s/%s, which cannot be read: %s", place.url, key, error)
        return "unanswered"
