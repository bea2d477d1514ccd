"""A place of every format that can be imported, made up: samples of 30 kB, episodes of 200 steps of 30 kB.

A library that is not installed is a ModuleNotFoundError, or an ImportError, of its maker.
"""

import gzip
import io
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import loader
from loader.storage import open_store
from penstock.formats.run_export import export
from tests.penstock.formats.builders.records import example, record

from . import tars
from .rows import PHOTO

NBYTES = 30_000
"""Bytes of a photo, of a text, of the tokens of a document, and of the picture of a step."""
PER_FILE = 1000
"""Samples of an object that has many."""
STEPS = 200
"""Steps of an episode, 20 a second."""
PER_HDF5 = 5
"""Episodes of a file of HDF5."""
SEED = 1
PERIOD_NS = 50_000_000


def place_of(format: str, folder: Path, photos: int) -> Path:
    """Return a place of so many photos, texts or steps below a folder, made if it is not there. Raises: ImportError."""
    place, making = folder / f"as-{format}-{photos}", folder / f"as-{format}-{photos}.making"
    if not place.exists():
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        MAKERS[format](making, photos)
        making.rename(place)
    return place


def samples_in(format: str, photos: int) -> int:
    """Return the number of samples of a place."""
    return episodes(photos) if format in OF_EPISODES else photos


def episodes(photos: int) -> int:
    """Return the number of episodes that have about so many steps."""
    return max(1, photos // STEPS)


def _photo(rng: np.random.Generator) -> bytes:
    return b"\xff\xd8\xff" + rng.bytes(NBYTES - 3)  # as a JPEG begins; an import does not decode it


def _photos(n: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of each file, and its photos."""
    rng = np.random.default_rng(SEED)
    for number, first in enumerate(range(0, n, PER_FILE)):
        yield number, [_photo(rng) for _ in range(first, min(first + PER_FILE, n))]


def _texts(n: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each file, and its texts."""
    rng, words = np.random.default_rng(SEED), [f"word{number:03d} " for number in range(1000)]
    each = NBYTES // len(words[0])
    for number, first in enumerate(range(0, n, PER_FILE)):
        some = rng.integers(0, len(words), (min(PER_FILE, n - first), each)).tolist()
        yield number, ["".join(map(words.__getitem__, one)) for one in some]


def _archives(place: Path, n: int) -> None:
    tars.make(place / "tars", n, PER_FILE, PHOTO)


def _packed_archives(place: Path, n: int) -> None:
    for path in sorted(tars.make(place / "plain", n, PER_FILE, PHOTO).iterdir()):
        (place / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    shutil.rmtree(place / "plain")


def _files(place: Path, n: int) -> None:
    for number, photos in _photos(n):
        (place / f"{number:03d}").mkdir()
        for at, photo in enumerate(photos):
            (place / f"{number:03d}" / f"{at:03d}.jpg").write_bytes(photo)


def _arrow(place: Path, n: int) -> None:
    for number, photos in _photos(n):
        table = pa.table({"jpg": photos, "label": range(len(photos))})
        with pa.ipc.new_stream(place / f"data-{number:05d}.arrow", table.schema) as out:
            out.write_table(table)


def _hub(place: Path, n: int) -> None:
    """Parquet as `push_to_hub` of Hugging Face writes pictures: groups of 100 rows, compressed with snappy."""
    kinds = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    told = {"huggingface": json.dumps({"info": {"features": kinds}})}
    schema = pa.schema({"image": image, "label": pa.int64()}, told)
    files = -(-n // PER_FILE)
    for number, photos in _photos(n):
        rows = [
            {"image": {"bytes": one, "path": f"{at}.jpg"}, "label": at % 2} for at, one in enumerate(photos)
        ]
        path = place / f"train-{number:05d}-of-{files:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=100)


def _csv(place: Path, n: int) -> None:
    for number, texts in _texts(n):
        lines = (f'{at},"{text}"\n' for at, text in enumerate(texts))
        (place / f"{number:05d}.csv").write_text("".join(["number,text\n", *lines]))


def _json(place: Path, n: int) -> None:
    for number, texts in _texts(n):
        lines = (json.dumps({"text": text, "source": "made up"}) + "\n" for text in texts)
        (place / f"{number:05d}.json").write_text("[" + ",".join(lines) + "]")


def _jsonl(place: Path, n: int) -> None:
    for number, texts in _texts(n):
        lines = (json.dumps({"text": text, "source": "made up"}) + "\n" for text in texts)
        (place / f"{number:05d}.jsonl").write_text("".join(lines))


def _lance(place: Path, n: int) -> None:
    import lance

    schema = pa.schema({"jpg": pa.binary(), "label": pa.int64()})
    batches = (
        pa.record_batch([pa.array(photos), pa.array(range(len(photos)), pa.int64())], schema=schema)
        for _, photos in _photos(n)
    )
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    lance.write_dataset(reader, str(place), max_rows_per_file=PER_FILE, mode="overwrite")


def _records(place: Path, n: int) -> None:
    files = -(-n // PER_FILE)
    for number, photos in _photos(n):
        rows = ({"image": [photo], "label": [at]} for at, photo in enumerate(photos))
        name = f"d-train.tfrecord-{number:05d}-of-{files:05d}"
        (place / name).write_bytes(b"".join(record(example(row)) for row in rows))


def _exported(format: str, dataset: str, place: Path, n: int) -> None:
    """Write a place by our export of a version, which is kept beside it for other formats."""
    root = loader.Root(place.parent / f"{dataset}-root-{n}")
    root.create()
    if dataset not in root.datasets():
        _write(root, dataset, n)
    done = export(root.open(f"{dataset}@latest"), format, open_store(str(place)), lossy=True)
    if done.failures:
        raise RuntimeError(f"{format}: {done.failures}")


def _write(root: loader.Root, dataset: str, n: int) -> None:
    rng = np.random.default_rng(SEED)
    with root.write(dataset) as writer:
        if dataset == "arms":
            clip = _clip()
            for number in range(episodes(n)):
                fields = {
                    "action.npy": rng.normal(size=(STEPS, 7)).astype(np.float32),
                    "action.ns.npy": np.arange(STEPS) * PERIOD_NS,
                    "observation.images.high.mp4": clip,
                }
                writer.add(f"episode_{number:06d}", fields, metadata={"task": "lift"})
            return
        for number in range(n):
            if dataset == "photos":
                one = {"jpg": _photo(rng), "cls": b"%d" % (number % 10)}
            else:
                one = {"tokens.u2": rng.bytes(NBYTES)}
            writer.add(f"{number:09d}", one)


def _clip() -> bytes:
    """An mp4 file of noise, whose packets have some 30 kB."""
    import av

    rng, sink = np.random.default_rng(SEED), io.BytesIO()
    with av.open(sink, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=20, options={"preset": "ultrafast", "g": "10", "qp": "30"})
        stream.width, stream.height, stream.pix_fmt = 256, 192, "yuv420p"
        for _ in range(STEPS):
            picture = rng.integers(0, 256, (192, 256, 3), np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        out.mux(stream.encode(None))
    return sink.getvalue()


def _pictures() -> list[bytes]:
    """JPEG files of noise, some 30 kB each, one for each step of an episode."""
    from PIL import Image

    rng, out = np.random.default_rng(SEED), []
    for _ in range(STEPS):
        sink = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (152, 152, 3), np.uint8)).save(sink, "JPEG", quality=94)
        out.append(sink.getvalue())
    return out


def _packed_shards(place: Path, n: int) -> None:
    """MDS, each shard compressed with zstd."""
    _exported("mds", "photos", place, n)
    shutil.rmtree(place / ".penstock")
    told = json.loads((place / "index.json").read_text())
    for shard in told["shards"]:
        path = place / shard["raw_data"]["basename"]
        packed = pa.compress(path.read_bytes(), "zstd", asbytes=True)
        path.unlink()
        shard |= {
            "compression": "zstd",
            "zip_data": {"basename": f"{path.name}.zstd", "bytes": len(packed), "hashes": {}},
        }
        (place / f"{path.name}.zstd").write_bytes(packed)
    (place / "index.json").write_text(json.dumps(told))


def _packed_chunks(place: Path, n: int) -> None:
    """LitData, each chunk compressed with zstd."""
    _exported("litdata", "photos", place, n)
    shutil.rmtree(place / ".penstock")
    told = json.loads((place / "index.json").read_text())
    told["config"] |= {"compression": "zstd", "compression_level": "chunk"}
    for chunk in told["chunks"]:
        path = place / chunk["filename"]
        path.write_bytes(pa.compress(path.read_bytes(), "zstd", asbytes=True))
    (place / "index.json").write_text(json.dumps(told))


def _rlds(place: Path, n: int) -> None:
    def tensor(dtype: str, *shape: int) -> dict[str, Any]:
        return {"tensor": {"shape": {"dimensions": [*map(str, shape)]}, "dtype": dtype, "encoding": "none"}}

    image = {"shape": {"dimensions": ["152", "152", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    step = {"action": tensor("float32", 7), "image": {"image": image}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": step}}, "length": "-1"}}
    (place / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps}}}))
    rng, pictures, files = np.random.default_rng(SEED), _pictures(), episodes(n)
    for number in range(files):
        one = {"steps/action": rng.normal(size=7 * STEPS).tolist(), "steps/image": pictures}
        path = place / f"d-train.tfrecord-{number:05d}-of-{files:05d}"
        path.write_bytes(record(example(one)))


def _hdf5(place: Path, n: int) -> None:
    import h5py

    rng, many = np.random.default_rng(SEED), episodes(n)
    for first in range(0, many, PER_HDF5):
        with h5py.File(place / f"{first // PER_HDF5:05d}.hdf5", "w") as file:
            file.create_group("data").attrs["env_args"] = "{}"
            for number in range(first, min(first + PER_HDF5, many)):
                demo = file.create_group(f"data/demo_{number}")
                demo.attrs["num_samples"] = STEPS
                demo["actions"] = rng.normal(size=(STEPS, 7))
                demo["obs/agentview_image"] = rng.integers(0, 256, (STEPS, 100, 100, 3), np.uint8)


PICTURE, JOINTS = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/JointState"


def _messages(types: Any, **more: int) -> Iterator[tuple[str, str, int, Any]]:
    """Yield topic, type, time and message of a log: a picture and the joints of each step."""
    rng = np.random.default_rng(SEED)
    for at, picture in enumerate(_pictures()):
        now = 1_700_000_000_000_000_000 + at * PERIOD_NS
        stamp = types["builtin_interfaces/msg/Time"](sec=now // 10**9, nanosec=now % 10**9)
        header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="base", **more)
        data = np.frombuffer(picture, np.uint8)
        yield "/camera", PICTURE, now, types[PICTURE](header=header, format="jpeg", data=data)
        joints, none = rng.normal(size=7), np.zeros(0)
        names = [f"joint{number}" for number in range(7)]
        yield "/joints", JOINTS, now, types[JOINTS](header, names, joints, none, none)


def _mcap(place: Path, n: int) -> None:
    from mcap.writer import Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    told = [
        (topic, kind, now, bytes(types.serialize_cdr(one, kind)))
        for topic, kind, now, one in _messages(types.types)
    ]
    for number in range(episodes(n)):
        with open(place / f"{number:05d}.mcap", "wb") as file:
            writer, channels = Writer(file), dict[str, int]()
            writer.start()
            for topic, kind, now, data in told:
                if topic not in channels:
                    text = types.generate_msgdef(kind, ros_version=2)[0].encode()
                    schema = writer.register_schema(kind, "ros2msg", text)
                    channels[topic] = writer.register_channel(topic, "cdr", schema)
                writer.add_message(channels[topic], now, data, now)
            writer.finish()


def _bags(place: Path, n: int) -> None:
    """Bags of ROS 1."""
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS1_NOETIC)
    told = [
        (topic, kind, now, types.serialize_ros1(one, kind))
        for topic, kind, now, one in _messages(types.types, seq=0)
    ]
    for number in range(episodes(n)):
        with Writer(place / f"{number:05d}.bag") as writer:
            connections: dict[str, Any] = {}
            for topic, kind, now, data in told:
                if topic not in connections:
                    connections[topic] = writer.add_connection(topic, kind, typestore=types)
                writer.write(connections[topic], now, data)


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "webdataset": _archives,
    "webdataset-compressed": _packed_archives,
    "energon": partial(_exported, "energon", "photos"),
    "files": _files,
    "mds": partial(_exported, "mds", "photos"),
    "mds-compressed": _packed_shards,
    "litdata": partial(_exported, "litdata", "photos"),
    "litdata-compressed": _packed_chunks,
    "megatron": partial(_exported, "megatron", "tokens"),
    "parquet": partial(_exported, "parquet", "photos"),
    "hf": _hub,
    "arrow": _arrow,
    "lance": _lance,
    "json": _json,
    "jsonl": _jsonl,
    "csv": _csv,
    "tfrecord": _records,
    "rlds": _rlds,
    "robomimic": _hdf5,
    "lerobot": partial(_exported, "lerobot", "arms"),
    "mcap": _mcap,
    "rosbag": _bags,
}
"""Format -> function that fills an empty folder with a place of so many photos, texts or steps."""
OF_EPISODES = frozenset({"rlds", "robomimic", "lerobot", "mcap", "rosbag"})
"""Formats whose samples are episodes."""
TEXTS = frozenset({"csv", "json", "jsonl"})
"""Formats whose column `text` is a field."""
