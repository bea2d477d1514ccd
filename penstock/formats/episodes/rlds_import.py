"""RLDS, datasets of TensorFlow Datasets whose examples are episodes with steps, read without TensorFlow.

The place is the folder of one `features.json`, which says what the features of the records of TFRecord are.
"""

import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from loader.dataset.columnar.column_names import MOST_TEXT_BYTES, metadata_name, row_key, word_of
from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.modalities.video.packet_table import SUFFIX, index_packets
from loader.storage import ObjectInfo, Store

from ..importing.importer import Options, Readable, ReadSample, Run
from ..tables.example_wire import Feature as Values
from ..tables.tfrecord_import import examples
from .columns import json_of, npy_of
from .message_images import depth_pictures, encoded_frame, mp4_of_frames
from .rlds_features import Feature, features_in

OPTIONS = frozenset[str]()
FEATURES = "features.json"
STEP_NS = 10**9
"""Time from one frame of a camera to the next: steps have no clock, so frame k is shown at k seconds."""
_RECORDS = re.compile(r"-([A-Za-z0-9_.]+)\.tfrecord-\d+-of-\d+$")
_OTHERS = re.compile(r"\.(array_record|riegeli|parquet)-\d+-of-\d+$")


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the files of records. Raises: InvalidStore for files of another kind; Corrupt; InvalidSample."""
    keys = {info.key for info in infos}
    if FEATURES not in keys:
        return Readable([], lambda info: [], lambda run: iter(()))
    if others := [key for key in sorted(keys) if _OTHERS.search(key)]:
        raise InvalidStore(
            f"{store.url}/{others[0]} is no TFRecord: write the dataset with file_format='tfrecord'"
        )
    features = features_in(store.get(FEATURES).data, f"{store.url}/{FEATURES}")
    wanted = [one for one in features if not _is_left_out(one, options)]
    for one in wanted:
        if not one.kind:
            raise InvalidSample(
                f"{store.url}/{FEATURES}: {one.path} is encoded, a list in a list, of unknown size, or of a kind that "
                f"is not read: leave it out (--without {one.path})"
            )
    mine = [info for info in infos if _RECORDS.search(info.key)]
    return Readable(mine, lambda info: [Run(info, nbytes=info.nbytes)], partial(_samples, store, wanted))


def _is_left_out(feature: Feature, options: Options) -> bool:
    return feature.path in options.without or _name(feature) in options.without


def _name(feature: Feature) -> str:
    """Return a feature's name here: of steps without the list's name, with dots."""
    path = feature.path.partition("/")[2] if feature.in_steps else feature.path
    return (path or feature.path).replace("/", ".")


def _samples(store: Store, wanted: list[Feature], run: Run) -> Iterator[ReadSample]:
    """Yield the episodes of a file. Raises: Corrupt with the byte; InvalidSample; Changed; StoreError."""
    found = _RECORDS.search(run.info.key)
    source = {"split": found[1]} if found else {}
    for row, where, values in examples(store, run.info):
        fields, metadata = _episode(values, wanted, where)
        yield ReadSample(row_key(run.info.key, row), fields, metadata, source)


def _episode(
    values: dict[str, Values], wanted: list[Feature], where: str
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return fields and metadata of an episode. Raises: Corrupt; InvalidSample."""
    fields, metadata, steps = dict[str, bytes](), dict[str, Any](), dict[str, int]()
    for feature in wanted:
        found = values.get(feature.path)
        what = f"{where}: {feature.path}"
        if found is None or not len(found.values):
            steps |= {feature.path: 0} if feature.in_steps else {}
            continue
        if feature.in_steps:
            made, steps[feature.path] = _steps(feature, found, what)
        else:
            made = _own(feature, found, metadata, what)
        if twice := sorted(set(made) & set(fields)):
            raise InvalidSample(
                f"{what}: {twice[0]} is the field of another feature: leave one out (--without)"
            )
        fields |= made
    if len(set(steps.values())) > 1:
        most = max(steps.values())
        path = next(path for path, n in steps.items() if n != most)
        raise Corrupt(f"{where}: {path} has values of {steps[path]} steps, others of {most}")
    metadata["n_steps"] = max(steps.values(), default=0)
    if not fields:
        raise InvalidSample(f"{where}: no step has a value: an episode without fields is no sample")
    return fields, metadata


def _steps(feature: Feature, found: Values, what: str) -> tuple[dict[str, bytes], int]:
    """Return the fields of a feature of steps, and the number of steps. Raises: Corrupt; InvalidSample."""
    name = _name(feature)
    if feature.kind == "numbers":
        array = _numbers(feature, found, what)
        return {f"{name}.npy": npy_of(array)}, len(array)
    listed = _bytes(found, what)
    if feature.kind == "text":
        texts = [_text(one, what) for one in listed]
        return {f"{name}.json": json_of(texts)}, len(texts)
    if feature.kind == "depth":
        return {f"{name}.npy": npy_of(depth_pictures(listed, what))}, len(listed)
    codecs = list(dict.fromkeys(_codec(one, what) for one in listed))
    if len(codecs) > 1:
        raise InvalidSample(f"{what}: its pictures are of several kinds or sizes: {', '.join(codecs[:3])}")
    film = mp4_of_frames(codecs[0], listed, np.arange(len(listed)) * STEP_NS, what)
    return {f"{name}.mp4": film, f"{name}.mp4{SUFFIX}": index_packets(film)}, len(listed)


def _codec(picture: bytes, what: str) -> str:
    """Return the codec and the size of an encoded picture. Raises: Corrupt; InvalidSample."""
    try:
        return encoded_frame({"data": np.frombuffer(picture, np.uint8), "format": "unknown"})[0]
    except InvalidSample as error:
        raise InvalidSample(f"{what}: {error}") from error
    except (ValueError, struct.error) as error:
        raise Corrupt(f"{what}: a picture is damaged: {error}") from error


def _own(feature: Feature, found: Values, metadata: dict[str, Any], what: str) -> dict[str, bytes]:
    """Return the field of a feature of the episode, or none: single numbers and short texts become metadata."""
    name = _name(feature)
    if feature.kind == "numbers":
        array = _numbers(feature, found, what)
        if feature.shape:
            return {f"{name}.npy": npy_of(array[0])}
        metadata[metadata_name(name)] = array[0].item()
        return {}
    (data, *more) = _bytes(found, what)
    if more:
        raise Corrupt(f"{what} has {len(more) + 1} values, and is one of the episode")
    if feature.kind == "image":
        return {f"{name}.{word_of(data) or 'bin'}": data}
    text = _text(data, what)
    if len(data) > MOST_TEXT_BYTES:
        return {f"{name}.txt": data}
    metadata[metadata_name(name)] = text
    return {}


def _numbers(feature: Feature, found: Values, what: str) -> Any:
    """Return [values, ...]. Raises: Corrupt for another number of them, or numbers beyond the dtype."""
    if found.kind == "bytes" or len(found.values) % max(1, feature.size) or not feature.size:
        raise Corrupt(
            f"{what} has {len(found.values)} {found.kind} values, and a shape of {list(feature.shape)}"
        )
    given: Any = found.values
    made = given.astype(feature.dtype)
    if feature.dtype.kind in "iu" and (made.astype(given.dtype) != given).any():
        raise Corrupt(f"{what} has numbers that are no {feature.dtype}")
    return made.reshape(-1, *feature.shape)


def _bytes(found: Values, what: str) -> list[bytes]:
    if not isinstance(found.values, list):
        raise Corrupt(f"{what} has {found.kind} values, and is of bytes")
    return found.values


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{what} is no UTF-8: {error}") from error
