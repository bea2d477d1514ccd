"""Build an episode from the messages of a log.

A topic's column is an array if all values are numbers of one shape, otherwise JSON.
"""

import io
import json
import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loader.errors import Corrupt, FieldTooLarge, InvalidSample
from loader.modalities.row_blocks import with_row_blocks
from loader.modalities.video.packet_table import SUFFIX, index_packets

from ..importer import ReadSample
from .message_decoders import (
    MAX_EPISODE_BYTES,
    MAX_FIELD_BYTES,
    MAX_LEAVES,
    LogMessage,
    damage_named,
    topic_decoder,
)
from .message_images import frame_codec, image_kind, mp4_of_frames, raw_image
from .topic_clocks import TopicTimes, topic_clocks

_EXACT = 2**53
"""Largest magnitude with every integer exact in float64."""
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def leaves(message: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested mappings, with its dotted path."""
    for name, value in message.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{front}{name}.")
        else:
            yield f"{front}{name}", value


class TopicColumn:
    """Values at one path, one row per message."""

    def __init__(self) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._data = bytearray()
        self._shapes: list[tuple[int, ...] | None] = []  # None for a message that has no such value
        self._texts: list[bytes] | None = None  # JSON of each row, once a value is not a number

    def add(self, row: int, value: Any) -> int:
        """Add a value after gaps for skipped rows; return the bytes that they take in memory."""
        before = len(self._data)
        if self._texts is None and self._takes(value):
            self._shapes += [None] * (row - len(self._shapes))
            self._shapes.append(value.shape)
            self._data += (value if value.dtype == self._dtype else value.astype(self._dtype)).tobytes()
            return 8 + len(self._data) - before
        if self._texts is None:
            self._texts = list(self._as_texts())
            self._data.clear()
        self._texts += [b"null"] * (row - len(self._texts))
        self._texts.append(json_bytes(value))
        return 40 + len(self._texts[-1])

    def _takes(self, value: Any) -> bool:
        if not isinstance(value, np.generic | np.ndarray):
            return False
        if self._dtype is None:
            self._dtype = value.dtype
        if value.dtype == self._dtype:
            return True
        # JSON does not distinguish them: 1 and 1.5 may be values of one column.
        if {value.dtype, self._dtype} != {np.dtype(np.int64), np.dtype(np.float64)}:
            return False
        if self._dtype == np.float64:
            return _exact(value)
        # Earlier integers become floats only if none of them changes.
        numbers = np.frombuffer(bytes(self._data), np.int64)
        if not _exact(numbers):
            return False
        self._dtype = value.dtype
        self._data = bytearray(numbers.astype(np.float64).tobytes())
        return True

    def _as_texts(self) -> Iterator[bytes]:
        at = 0
        for shape in self._shapes:
            if shape is None:
                yield b"null"
                continue
            count = math.prod(shape)
            assert self._dtype is not None
            numbers = np.frombuffer(self._data, self._dtype, count, at).reshape(shape).copy()
            at += count * self._dtype.itemsize
            yield json_bytes(numbers)

    def finish(self, rows: int) -> tuple[str, bytes]:
        if self._texts is None and len(self._shapes) == rows and len(set(self._shapes)) == 1:
            shape = self._shapes[0]
            assert shape is not None
            return "npy", npy_bytes(np.frombuffer(self._data, self._dtype).reshape(rows, *shape))
        texts = list(self._as_texts()) if self._texts is None else self._texts
        return "json", b"[" + b",".join(texts + [b"null"] * (rows - len(texts))) + b"]"


def _exact(numbers: Any) -> bool:
    return bool(((numbers >= -_EXACT) & (numbers <= _EXACT)).all())


def npy_bytes(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(values), allow_pickle=False)
    return out.getvalue()


def json_bytes(value: Any) -> bytes:
    """Return JSON; NaN and infinities become text."""
    return _JSON.encode(_plain(value)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


FACTS = "episode.json"


class EpisodeBuilder:
    def __init__(self, where: str, without: frozenset[str], clock_choices: Mapping[str, str]) -> None:
        """where: log name, for errors. without: topics to leave out. clock_choices: topic -> its clock.

        Topics may have slashes or dots.
        """
        self._where = where
        self._without = without
        self._clock_choices = clock_choices
        self._topics: dict[str, _Topic] = {}
        self._nbytes = 0

    def add(self, message: LogMessage) -> None:
        """Add a message. Raises: FieldTooLarge; InvalidSample; Corrupt."""
        channel = message.channel
        name = channel.topic.strip("/").replace("/", ".") or "topic"
        if {channel.topic, name} & self._without:
            return
        where = f"{self._where}, topic {channel.topic}"
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(message, name, where)
        if topic.channel != channel:
            raise InvalidSample(
                f"{where} has messages of two types, or of two topics with one name; leave it out "
                f"(--without {channel.topic})"
            )
        self._nbytes += topic.add(message)
        if self._nbytes > MAX_EPISODE_BYTES:
            raise FieldTooLarge(
                f"{self._where} has more than {MAX_EPISODE_BYTES:,} bytes of values; cut the log, or leave topics out "
                "(--without)"
            )

    def sample(self, key: str) -> ReadSample:
        """Return the episode. Raises: InvalidSample; Corrupt."""
        if not self._topics:
            raise InvalidSample(f"{self._where} has no messages of topics that are read; move it elsewhere")
        topic_times = [topic.times() for topic in self._topics.values()]
        clocks = topic_clocks(self._where, topic_times, self._clock_choices)
        zero = min(int(times[0]) for _, times in clocks.values())
        last = max(int(times[-1]) for _, times in clocks.values())
        fields: dict[str, bytes] = {}
        topics = {}
        for name, topic in self._topics.items():
            clock, times = clocks[name]
            for field, data in topic.fields(times - zero).items():
                if field in fields:
                    raise InvalidSample(
                        f"{self._where}: two values would be the field {field}; leave a topic out (--without "
                        f"{topic.channel.topic})"
                    )
                fields[field] = data
            topics[name] = {
                "topic": topic.channel.topic,
                "type": topic.channel.type_name,
                "encoding": topic.channel.encoding,
                "clock": clock,
                "n_messages": len(times),
            }
        fields[FACTS] = json_bytes({"topics": topics})
        metadata = {
            "clock_zero_ns": zero,
            "duration_ns": last - zero,
            "n_messages": sum(len(times) for _, times in clocks.values()),
        }
        chosen = {column: value for column, value in metadata.items() if column not in self._without}
        return ReadSample(key, with_row_blocks(fields), chosen)


class _Topic:
    def __init__(self, message: LogMessage, name: str, where: str) -> None:
        self.channel = message.channel
        self._name = name
        self._where = where
        self._leave_out = f"leave the topic out (--without {self.channel.topic})"
        with damage_named(f"{where}: its definition"), self._refuse("it"):
            self._decode = topic_decoder(self.channel)
        self._kind = image_kind(self.channel.type_name)
        self._columns: dict[str, TopicColumn] = {}
        self._sizes: dict[str, int] = {}
        self._codec = ""
        self._frames = list[bytes]()
        self._log_times = array("q")
        self._stamps = array("q")
        self._stamp_name: str | None = ""  # None once a message has no stamp

    def _refuse(self, what: str) -> "_NamedErrors":
        return _NamedErrors(f"{self._where}, {what}", self._leave_out)

    def add(self, message: LogMessage) -> int:
        """Add a message; return the bytes that it takes in memory."""
        row = len(self._log_times)
        with damage_named(f"{self._where}, row {row}"), self._refuse(f"row {row}"):
            values = dict(self._decode(message.data))
            if message.log_time < 0:
                raise InvalidSample(
                    f"its log_time is {message.log_time}; accepted: Unix nanoseconds from 0 on"
                )
            self._log_times.append(message.log_time)
            self._stamp(values)
            nbytes = 0
            if self._kind == "encoded":
                codec, frame = frame_codec(values)
                if self._codec not in ("", codec):
                    raise InvalidSample(f"its images are {codec}, and {self._codec} before")
                self._codec = codec
                self._frames.append(frame)
                nbytes += self._count("mp4", len(frame))
                del values["data"]
            elif self._kind == "raw":
                values[""] = raw_image(values)
                del values["data"]
            for path, value in leaves(values):
                if path not in self._columns:
                    if len(self._columns) == MAX_LEAVES:
                        raise InvalidSample(
                            f"its messages have more than {MAX_LEAVES:,} values of different names"
                        )
                    self._columns[path] = TopicColumn()
                nbytes += self._count(path, self._columns[path].add(row, value))
        return nbytes

    def _count(self, path: str, nbytes: int) -> int:
        self._sizes[path] = self._sizes.get(path, 0) + nbytes
        if self._sizes[path] > MAX_FIELD_BYTES:
            raise FieldTooLarge(
                f"its values {path!r} have more than {MAX_FIELD_BYTES:,} bytes; cut the log, or else"
            )
        return nbytes

    def _stamp(self, values: Mapping[str, Any]) -> None:
        if self._stamp_name is None:
            return
        header = values.get("header")
        for name, stamp in (
            ("header.stamp", header.get("stamp") if isinstance(header, dict) else None),
            ("timestamp", values.get("timestamp")),
        ):
            ns = _stamp_ns(stamp)
            if ns is not None and self._stamp_name in ("", name):
                self._stamp_name = name
                self._stamps.append(ns)
                return
        self._stamp_name = None

    def times(self) -> TopicTimes:
        return TopicTimes(
            self.channel.topic,
            self._name,
            np.frombuffer(self._log_times, np.int64),
            self._stamp_name or "",
            np.frombuffer(self._stamps, np.int64),
        )

    def fields(self, ns: Any) -> dict[str, bytes]:
        out = {f"{self._name}.ns.npy": npy_bytes(ns)}
        for path, column in self._columns.items():
            word, data = column.finish(len(ns))
            field = f"{self._name}.{path}.{word}" if path else f"{self._name}.{word}"
            if field in out:
                raise InvalidSample(
                    f"{self._where} has a value {path!r}, the name of its clock; {self._leave_out}"
                )
            if not path and word != "npy":
                raise InvalidSample(f"{self._where} has images of different sizes; {self._leave_out}")
            out[field] = data
        if self._frames:
            with self._refuse("its images"):
                data = mp4_of_frames(self._codec, self._frames, ns, "as a video")
                out[f"{self._name}.mp4"] = data
                out[f"{self._name}.mp4{SUFFIX}"] = index_packets(data)
        return out


class _NamedErrors:
    def __init__(self, where: str, leave_out: str) -> None:
        self._where = where
        self._leave_out = leave_out

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidSample | Corrupt):
            raise error.with_message(f"{self._where}: {error}; {self._leave_out}") from error


def _stamp_ns(stamp: Any) -> int | None:
    if not isinstance(stamp, dict):
        return None
    for seconds, rest in (("sec", "nanosec"), ("sec", "nsec"), ("seconds", "nanos")):
        if seconds in stamp and rest in stamp:
            parts = stamp[seconds], stamp[rest]
            if not all(isinstance(one, np.integer | int) for one in parts):
                return None
            ns = int(parts[0]) * 10**9 + int(parts[1])
            if 0 <= ns < 2**63:
                return ns
            return None
    return None
