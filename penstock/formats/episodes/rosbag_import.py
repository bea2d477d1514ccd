"""ROS bags: each ROS 1 file, or ROS 2 folder with a `metadata.yaml`, is a sample."""

import bz2
import io
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from loader.errors import Corrupt, InvalidSample, MissingDependency
from loader.keywords import is_whole_number
from loader.storage import ObjectInfo, Store
from loader.storage.disk.scratch import on_scratch, scratch_folder
from loader.storage.threads import DaemonPool

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample, group_files, joined
from ..reading.object_file import ObjectFile
from ..reading.stated_counts import MOST_NAMED, WAY_OUT, StatedCounts
from .episode import EpisodeBuilder
from .mcap_import import mcap_messages
from .message_decoders import MAX_CHUNK_BYTES, LogChannel, LogMessage, damage_named

OPTIONS = frozenset({"clocks"})
_ENDING = ".bag"
_METADATA = "metadata.yaml"
_MOST_METADATA_BYTES = 2**22
_AT_ONCE = 16
_MOST_NAMES = 2**18
_NAMES: dict[tuple[str, str, str], tuple[str, ...]] = {}
"""Store URL, key and ETag of a `metadata.yaml` -> the bag's files."""
_BEGIN = b"#ROSBAG V2.0\n"


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return ROS 1 bags, and ROS 2 `metadata.yaml` files joined with the bag's files if all exist."""
    return _readable_bags(store, infos, options, whole=not options.allow_missing)


def find_complete_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    return _readable_bags(store, infos, options, whole=False)


def names_in(store: Store, infos: Sequence[ObjectInfo], options: ColumnarOptions) -> dict[str, list[str]]:
    """Return key of a `metadata.yaml` -> it and the bag's files; only itself if invalid."""
    if find_spec("rosbags") is None:
        raise MissingDependency("bags are read by rosbags: pip install 'penstock-data[rosbag]'")
    described = [info for info in infos if _is_metadata(info)]
    with DaemonPool(_AT_ONCE, "penstock-bags") as pool:
        named = list(pool.map(partial(_cached_names, store), described))
    return {
        info.key: [info.key, *(info.key.removesuffix(_METADATA) + name for name in names)]
        for info, names in zip(described, named, strict=True)
    }


def _readable_bags(
    store: Store, infos: list[ObjectInfo], options: ColumnarOptions, *, whole: bool
) -> Readable:
    there = {one.key: one for one in infos}
    files, waiting = group_files(names_in(store, infos, options), there)
    stated = StatedCounts()
    left_out = dict[str, str]()
    if not whole:
        left_out = waiting
        for key, missing in sorted(waiting.items()):
            stated.lacks(f"{store.url}/{key} names the file {missing}, which is not there", missing)
    bags = _Bags(store, there, options, stated)
    bags_there = [
        joined(files.get(one.key, [one]))
        for one in infos
        if (one.key.lower().endswith(_ENDING) or _is_metadata(one)) and one.key not in left_out
    ]
    messages = frozenset(one.key for own in files.values() for one in own)
    return Readable(bags_there, bags.runs, bags.samples, known=messages, stated=stated)


def _cached_names(store: Store, info: ObjectInfo) -> tuple[str, ...]:
    known = (store.url, info.key, info.etag)
    if known not in _NAMES:
        try:
            names = tuple(describe_bag(store, info).names)
        except (Corrupt, InvalidSample):
            names = ()
        if len(_NAMES) >= _MOST_NAMES:
            _NAMES.clear()
        _NAMES[known] = names
    return _NAMES[known]


class DescribedBag(NamedTuple):
    """A ROS 2 bag according to its `metadata.yaml`."""

    names: list[str]
    """Names of its files."""
    n_messages: int | None
    """Number of messages in all files; None if it is not stated."""


def describe_bag(store: Store, info: ObjectInfo) -> DescribedBag:
    """Return a bag's description. Raises: Corrupt; InvalidSample for a packed bag."""
    if info.nbytes > _MOST_METADATA_BYTES:
        raise Corrupt(f"{info.key} has {info.nbytes:,} bytes; no {_METADATA} has so many")
    with ObjectFile(store, info) as file:
        where = file.path
        data = file.read()
    with damage_named(where):
        from ruamel.yaml import YAML

        # Events are not expanded, so that a hostile file costs no more than its own size.
        if b"*" in data and any(
            type(one).__name__ == "AliasEvent" for one in YAML(typ="safe", pure=True).parse(data)
        ):
            raise Corrupt(
                f"{where} has aliases of YAML, which rosbag2 never writes: they may stand for any size"
            )
        body: Any = YAML(typ="safe", pure=True).load(data)["rosbag2_bagfile_information"]
        packed = str(body.get("compression_mode") or "none").lower()
        names = [str(name).rpartition("/")[2] for name in body["relative_file_paths"]]
        n_messages = body.get("message_count")
    if packed != "none":
        raise InvalidSample(
            f"{where}: the bag is packed (compression_mode {packed}), which is not read; unpack it with "
            "ros2 bag convert"
        )
    if not names or not all(names):
        raise Corrupt(f"{where} names no files")
    if not is_whole_number(n_messages, 0):
        n_messages = None
    return DescribedBag(names, n_messages)


def _is_metadata(info: ObjectInfo) -> bool:
    return info.key.rpartition("/")[2] == _METADATA


class _Bags:
    def __init__(
        self,
        store: Store,
        infos: Mapping[str, ObjectInfo],
        options: ColumnarOptions,
        stated: StatedCounts,
    ) -> None:
        self._store = store
        self._infos = infos
        self._options = options
        self._stated = stated

    def runs(self, info: ObjectInfo) -> list[ImportRun]:
        own = self._infos[info.key]
        parts = [own]
        if _is_metadata(own):
            parts = self._parts(own, describe_bag(self._store, own))
        return [ImportRun(info, 0, 1, sum(one.nbytes for one in parts))]

    def samples(self, run: ImportRun) -> Iterator[ReadSample]:
        info = self._infos[run.info.key]
        with ObjectFile(self._store, info) as file:
            episode = EpisodeBuilder(file.path, self._options.without, self._options.clocks)
            if not _is_metadata(info):
                for message in ros1_messages(file, file.path):
                    episode.add(message)
        if not _is_metadata(info):
            yield episode.sample(info.key.rpartition(".")[0])
            return
        n_there = 0
        described = describe_bag(self._store, info)
        for part in self._parts(info, described):
            for message in self._messages(part):
                episode.add(message)
                n_there += 1
        if described.n_messages is not None:
            self._stated.compare(f"{self._store.url}/{info.key}", "messages", described.n_messages, n_there)
        yield episode.sample(info.key.rpartition("/")[0] or "bag")

    def _parts(self, info: ObjectInfo, described: DescribedBag) -> list[ObjectInfo]:
        names = described.names
        folder = info.key.removesuffix(_METADATA)
        lacking = [name for name in names if folder + name not in self._infos]
        if lacking:
            named = ", ".join(lacking[:MOST_NAMED])
            raise Corrupt(
                f"{self._store.url}/{info.key} names {len(lacking)} files that are not beside it: {named}; {WAY_OUT}"
            )
        return [self._infos[folder + name] for name in names]

    def _messages(self, part: ObjectInfo) -> Iterator[LogMessage]:
        with ObjectFile(self._store, part) as file:
            if part.key.endswith(".mcap"):
                yield from mcap_messages(file, file.path, self._stated)
                return
            if not part.key.endswith(".db3"):
                raise InvalidSample(
                    f"{file.path} is a file of a bag that is not read; read are .db3 and .mcap"
                )
            with scratch_folder("rosbag") as folder:
                # SQLite reads local files only.
                path = folder / "bag.db3"
                with (
                    on_scratch(
                        None,
                        f"when {file.path} was copied",
                        room_for="a bag's database",
                        again="run the same command again",
                    ),
                    path.open("wb") as out,
                ):
                    shutil.copyfileobj(file, out, 2**22)
                yield from ros2_database_messages(path, file.path)


class _OpenBag:
    def __init__(self, file: Any) -> None:
        self._file = file

    def exists(self) -> bool:
        return True

    def open(self, mode: str) -> Any:
        return self._file


def ros1_messages(file: io.RawIOBase, where: str) -> Iterator[LogMessage]:
    with damage_named(where):
        from rosbags.rosbag1 import Reader

        buffered = io.BufferedReader(file, 2**16)
        if buffered.read(len(_BEGIN)) != _BEGIN:  # rosbags would read on to the end of the line
            raise ValueError("it is not a bag of version 2.0")
        buffered.seek(0)
        path: Any = _OpenBag(buffered)
        with Reader(path) as reader:
            limited = _limited_decompressors()
            for position, chunk in reader.chunks.items():
                decompressor = limited.get(chunk.decompressor, _plain)
                reader.chunks[position] = chunk._replace(decompressor=decompressor)
            channels = {
                one.id: LogChannel(one.topic, "ros1", one.msgtype, "ros1msg", one.msgdef.data.encode())
                for one in reader.connections
            }
            for connection, log_time, data in reader.messages():
                yield LogMessage(channels[connection.id], log_time, data)


def _limited_decompressors() -> dict[Any, Callable[[bytes], bytes]]:
    """Return rosbags' decompressor -> one that stops at a limit.

    rosbags' own return a chunk whole, whatever its size.
    """
    import lz4.frame
    from rosbags.rosbag1.reader import decompressors

    def limit_output(make_decompressor: Callable[[], Any]) -> Callable[[bytes], bytes]:
        def unpack(data: bytes) -> bytes:
            decompressor = make_decompressor()
            plain = decompressor.decompress(data, max_length=MAX_CHUNK_BYTES + 1)
            if len(plain) > MAX_CHUNK_BYTES:
                raise InvalidSample(f"it has a chunk of more than {MAX_CHUNK_BYTES:,} bytes")
            if not decompressor.eof:
                raise ValueError(
                    "a packed chunk is cut"
                )  # `damage_named` makes it Corrupt, with the file's name
            return bytes(plain)

        return unpack

    return {
        decompressors["bz2"]: limit_output(bz2.BZ2Decompressor),
        decompressors["lz4"]: limit_output(lz4.frame.LZ4FrameDecompressor),
    }


def _plain(data: bytes) -> bytes:
    return data


def ros2_database_messages(path: Path, where: str) -> Iterator[LogMessage]:
    with damage_named(where):
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.rosbag2 import Reader

        _check_tables(path)
        encodings = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
        with Reader(path) as reader:
            channels = {}
            for connection in reader.connections:
                ext: Any = connection.ext
                encoding = encodings.get(connection.msgdef.format, "")
                channels[connection.id] = LogChannel(
                    connection.topic,
                    ext.serialization_format,
                    connection.msgtype,
                    encoding,
                    connection.msgdef.data.encode(),
                )
            for connection, log_time, data in reader.messages(list(reader.connections)):
                yield LogMessage(channels[connection.id], log_time, bytes(memoryview(data)))


def _check_tables(path: Path) -> None:
    """Raise ValueError for views or triggers: a query on a view may never end."""
    # immutable: SQLite creates no journal and no lock beside the file.
    database = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    try:
        others = database.execute(
            "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
    finally:
        database.close()
    if others:
        raise ValueError(f"it has views, triggers or virtual tables, which no bag has: {others[0][0]!r}")
