"""RLDS episodes of TensorFlow Datasets, read by their `features.json`, without TensorFlow."""

import math
import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.columnar.column_names import MOST_TEXT_BYTES, metadata_name, row_key, sniff_extension
from loader.dataset.columnar.shard_names import OF
from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.modalities.row_blocks import with_row_blocks
from loader.modalities.video.packet_table import SUFFIX, index_packets
from loader.storage import ObjectInfo, Store

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.stated_counts import StatedCounts
from ..tables.tfds_info import count_records
from ..tables.tfrecord_import import ExampleFeature, RecordCounts, examples
from .episode import json_bytes, npy_bytes
from .message_images import depth_images, frame_codec, mp4_of_frames

STEPS = "steps"
"""Feature with an entry per step."""
_MOST_DEPTH = 32
OPTIONS = frozenset[str]()
FEATURES = "features.json"
STEP_NS = 10**9
"""Nanoseconds between frames: steps have no clock, so frame k is at k seconds."""
_RECORDS = re.compile(rf"-([A-Za-z0-9_.]+)\.tfrecord-{OF}$")
_OTHERS = re.compile(rf"\.(array_record|riegeli|parquet)-{OF}$")


class RldsFeature(NamedTuple):
    path: str
    """Name in a record: the names on the path, joined by "/"."""
    in_steps: bool
    """True if each step has a value."""
    kind: str
    """"numbers", "text", "image" (8 bits), "depth" (16 bits, one channel, per step), or "" if unsupported."""
    dtype: np.dtype[Any]
    """Dtype of the numbers."""
    shape: tuple[int, ...]
    """A value's shape; () for text and images."""

    @property
    def size(self) -> int:
        """Numbers in one value."""
        return math.prod(self.shape)


def parse_features(data: bytes, name: str) -> list[RldsFeature]:
    """Return the features that `features.json` declares. name: file name for errors."""
    try:
        features = list(_leaves(parse_json_object(data), "", 0, 0))
    except (DamagedJson, KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{name}: it is not a features.json of TensorFlow Datasets: {error!r}"
        raise Corrupt(message, where=name, accepted="features.json of TensorFlow Datasets") from error
    if not any(feature.in_steps for feature in features):
        raise InvalidSample(
            f"{name} has no steps: import such a dataset as tfrecord", what="steps", where=name
        )
    return features


def _leaves(node: Any, path: str, sequences: int, depth: int) -> Iterator[RldsFeature]:
    """Yield the features of a node. sequences: lists around it. depth: nodes around it."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"{path} lies deeper than {_MOST_DEPTH}")
    if "featuresDict" in node:
        for name, child in node["featuresDict"]["features"].items():
            child_path = f"{path}/{name}" if path else name
            yield from _leaves(child, child_path, sequences, depth + 1)
    elif "sequence" in node:
        yield from _leaves(node["sequence"]["feature"], path, sequences + 1, depth + 1)
    else:
        yield _leaf(node, path, sequences)


def _leaf(node: dict[str, Any], path: str, sequences: int) -> RldsFeature:
    kind = ""
    dtype = "int64"
    shape: list[int] = []
    if "tensor" in node:
        kind, dtype, shape = _tensor(node["tensor"])
    elif "classLabel" in node:
        kind = "numbers"
    elif "text" in node:
        kind = "text"
    in_steps = path.partition("/")[0] == STEPS
    if "image" in node:
        kind = _image_kind(node["image"], in_steps)
    if sequences != in_steps:  # the steps are the only list that is read
        kind = ""
    number_type = np.dtype(dtype.replace("bfloat16", "float32"))  # records have float32 values
    return RldsFeature(path, in_steps, kind, number_type, tuple(shape))


def _tensor(body: dict[str, Any]) -> tuple[str, str, list[int]]:
    """Return the kind, the dtype of numbers, and the shape of a tensor."""
    dtype = str(body["dtype"])
    shape = [int(length) for length in body.get("shape", {}).get("dimensions", [])]
    kind = "numbers"
    if dtype == "string":
        kind = "" if shape else "text"
        dtype = "int64"
    is_encoded = body.get("encoding", "none") != "none"
    if is_encoded or min(shape, default=1) < 0:  # -1 is an unknown length
        kind = ""
    return kind, dtype, shape


def _image_kind(body: dict[str, Any], in_steps: bool) -> str:
    dtype = body.get("dtype", "uint8")
    if in_steps and dtype != "uint8":
        is_depth = dtype == "uint16" and body["shape"]["dimensions"][-1] == "1"
        return "depth" if is_depth else ""
    if dtype not in ("uint8", "uint16"):  # the bytes of floats as a PNG of four channels
        return ""
    return "image"


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the record files. Raises: InvalidStore for another file format."""
    keys = sorted(info.key for info in infos)
    if FEATURES not in keys:
        return Readable([], lambda info: [], lambda run: iter(()))
    for key in keys:
        if _OTHERS.search(key):
            message = f"{store.url}/{key} is not a TFRecord: write the dataset with file_format='tfrecord'"
            raise InvalidStore(message, where=f"{store.url}/{key}", accepted="TFRecord")
    features = parse_features(store.get(FEATURES).data, f"{store.url}/{FEATURES}")
    chosen = [feature for feature in features if not _is_excluded(feature, options)]
    for feature in chosen:
        if not feature.kind:
            message = (
                f"{store.url}/{FEATURES}: {feature.path} is encoded, a list in a list, of unknown size, or of an "
                f"unknown kind: leave it out (--without {feature.path})"
            )
            raise InvalidSample(message, what=feature.path, where=f"{store.url}/{FEATURES}")
    files = [info for info in infos if _RECORDS.search(info.key)]
    stated = StatedCounts()
    records = RecordCounts(count_records(store, infos, stated), stated)
    return Readable(
        files,
        lambda info: [ImportRun(info, nbytes=info.nbytes)],
        partial(_samples, store, chosen, records),
        stated=stated,
    )


def _is_excluded(feature: RldsFeature, options: ColumnarOptions) -> bool:
    return feature.path in options.without or _name(feature) in options.without


def _name(feature: RldsFeature) -> str:
    """Return the field name: the path with dots, without `steps`."""
    path = feature.path
    if feature.in_steps:
        path = path.partition("/")[2] or path
    return path.replace("/", ".")


def _samples(
    store: Store, chosen: list[RldsFeature], records: RecordCounts, run: ImportRun
) -> Iterator[ReadSample]:
    match = _RECORDS.search(run.info.key)
    source = {"split": match[1]} if match else {}
    for row, where, values in examples(store, run.info, records):
        fields, metadata = _episode(values, chosen, where)
        yield ReadSample(row_key(run.info.key, row), with_row_blocks(fields), metadata, source)


def _episode(
    values: dict[str, ExampleFeature], chosen: list[RldsFeature], where: str
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return an episode's fields and metadata."""
    fields: dict[str, bytes] = {}
    metadata: dict[str, Any] = {}
    n_steps: dict[str, int] = {}  # path -> number of its values
    for feature in chosen:
        raw = values.get(feature.path)
        what = f"{where}: {feature.path}"
        if raw is None or not len(raw.values):
            if feature.in_steps:
                n_steps[feature.path] = 0
            continue
        if feature.in_steps:
            feature_fields, n_steps[feature.path] = _steps(feature, raw, what)
        else:
            feature_fields = _episode_value(feature, raw, metadata, what)
        repeated = sorted(feature_fields.keys() & fields.keys())
        if repeated:
            raise InvalidSample(
                f"{what}: {repeated[0]} is the field of another feature: leave one out (--without)"
            )
        fields |= feature_fields
    most = max(n_steps.values(), default=0)
    for path, n in n_steps.items():
        if n != most:
            raise Corrupt(f"{where}: {path} has values of {n} steps, others of {most}")
    metadata["n_steps"] = most
    if not fields:
        raise InvalidSample(f"{where}: no step has a value: an episode without fields is not a sample")
    return fields, metadata


def _steps(feature: RldsFeature, raw: ExampleFeature, what: str) -> tuple[dict[str, bytes], int]:
    """Return the fields of a feature with a value per step, and the number of steps."""
    name = _name(feature)
    if feature.kind == "numbers":
        array = _numbers(feature, raw, what)  # [steps, ...]
        return {f"{name}.npy": npy_bytes(array)}, len(array)
    data = _bytes(raw, what)
    if feature.kind == "text":
        texts = [_text(text, what) for text in data]
        return {f"{name}.json": json_bytes(texts)}, len(texts)
    if feature.kind == "depth":
        return {f"{name}.npy": npy_bytes(depth_images(data, what))}, len(data)
    codecs = list(dict.fromkeys(_codec(image, what) for image in data))
    if len(codecs) > 1:
        raise InvalidSample(f"{what}: its images are of several kinds or sizes: {', '.join(codecs[:3])}")
    times = np.arange(len(data)) * STEP_NS
    video = mp4_of_frames(codecs[0], data, times, what)
    return {f"{name}.mp4": video, f"{name}.mp4{SUFFIX}": index_packets(video)}, len(data)


def _episode_value(
    feature: RldsFeature, raw: ExampleFeature, metadata: dict[str, Any], what: str
) -> dict[str, bytes]:
    """Return the field of a feature with one value per episode, or add the value to `metadata`."""
    name = _name(feature)
    if feature.kind == "numbers":
        array = _numbers(feature, raw, what)  # [1, ...]
        if feature.shape:
            return {f"{name}.npy": npy_bytes(array[0])}
        metadata[metadata_name(name)] = array[0].item()
        return {}
    (data, *others) = _bytes(raw, what)
    if others:
        raise Corrupt(f"{what}: expected one value per episode, got {len(others) + 1}")
    if feature.kind == "image":
        extension = sniff_extension(data) or "bin"
        return {f"{name}.{extension}": data}
    text = _text(data, what)
    if len(data) > MOST_TEXT_BYTES:
        return {f"{name}.txt": data}
    metadata[metadata_name(name)] = text
    return {}


def _codec(image: bytes, what: str) -> str:
    try:
        return frame_codec({"data": np.frombuffer(image, np.uint8), "format": "unknown"})[0]
    except InvalidSample as error:
        raise InvalidSample(f"{what}: {error}") from error
    except (ValueError, struct.error) as error:
        raise Corrupt(f"{what}: an image is damaged: {error}") from error


def _numbers(feature: RldsFeature, raw: ExampleFeature, what: str) -> Any:
    """Return the values: [values, ...] in the feature's dtype and shape."""
    n_values = len(raw.values)
    if raw.kind == "bytes" or not feature.size or n_values % feature.size:
        raise Corrupt(f"{what} has {n_values} {raw.kind} values, and a shape of {list(feature.shape)}")
    numbers: Any = raw.values
    converted = numbers.astype(feature.dtype)
    is_integer = feature.dtype.kind in "iu"
    # Records have int64 only, and a declared int8 must not wrap.
    if is_integer and (converted.astype(numbers.dtype) != numbers).any():
        raise Corrupt(f"{what} has numbers that are not {feature.dtype}")
    return converted.reshape(-1, *feature.shape)


def _bytes(raw: ExampleFeature, what: str) -> list[bytes]:
    if not isinstance(raw.values, list):
        raise Corrupt(f"{what} has {raw.kind} values, and is of bytes")
    return raw.values


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{what} is not UTF-8: {error}") from error
