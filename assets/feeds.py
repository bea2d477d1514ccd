"""Where notices of arrivals lie: files of JSON lines, or a queue that speaks SQS.

A letter (a file or a message) is taken away when nothing that it names waits any more: it is in a batch, or will never
be. So a tick that is killed loses none, and one that comes twice names what is in a batch already. Of a queue, letters
whose objects wait are hidden for as long as they may wait, and come again: set `maxReceiveCount` of a dead-letter queue
to 10 or more. Of files, the folder's owner is this feed: who wants to keep them copies them elsewhere.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa

from loader.dataset.parquet import put_named_table
from loader.errors import InvalidStore, MissingDependency, Transient
from loader.storage import Store
from resources.storage import from_environment, open_place

from .notices import Notice, Unreadable, read_notices
from .sources import Feed

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIDDEN_S = 120  # a message, while the tick that received it is at work
_MOST_S = 43_200  # that a queue hides one
_PER_CALL = 10  # messages, by SQS
_TEXT = 4096  # characters of an unreadable notice that are kept
_MOST_BYTES = 64 * 2**20  # of a file of notices


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """name: the file's key, or the message's receipt; notices: what it names; unreadable: (line, text, why)."""

    name: str
    notices: tuple[Notice, ...]
    unreadable: tuple[tuple[int, str, str], ...] = ()


class Box(Protocol):
    """A place that letters lie in. Raises of every verb: StoreError leaves."""

    url: str

    def letters(self, limit: int, held: Collection[str]) -> Iterator[Letter]:
        """Letters, at most about `limit` notices of them, without those named in `held`."""

    def hold(self, names: Sequence[str], seconds: float) -> None:
        """What they name waits for at most so long."""

    def remove(self, names: Sequence[str]) -> None:
        """They are dealt with."""


@contextmanager
def open_box(feed: Feed) -> Iterator[Box]:
    """The feed's box. Raises: InvalidStore; MissingDependency without boto3."""
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
    """Of the lines of a file, or the one of a message. A line that makes no sense is set aside, the others count."""
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
        for info in self._store.list(self._prefix):
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
        """Nothing: the source's state names them."""

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
            raise MissingDependency(f"{url} needs boto3: pip install 'penstock[s3]'") from error
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
