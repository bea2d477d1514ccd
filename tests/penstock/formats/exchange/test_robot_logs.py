"""MCAP files and bags of ROS, written by their own libraries: every value comes back, in whichever file it was."""

import base64
import contextlib
import io
import json
import os
import sqlite3
import struct
import tracemalloc
from fractions import Fraction

import av
import mcap.writer
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, TypesysError, get_types_from_msg, get_typestore

import loader
from fuzz.seeds import ordinary_priority
from loader.errors import Corrupt, PenstockError
from loader.modalities import find_decoder
from loader.storage import open_store
from penstock.formats.episodes.mcap_import import mcap_messages
from penstock.formats.episodes.message_decoders import LogChannel, ros_decoder
from penstock.formats.importer import ColumnarOptions
from penstock.formats.reading.stated_counts import StatedCounts
from penstock.formats.run_import import import_place
from tests.penstock.formats.versions import contents

ZERO = 1_700_000_000_000_000_000
JOINT, SCAN, IMAGE = "sensor_msgs/msg/JointState", "sensor_msgs/msg/LaserScan", "sensor_msgs/msg/Image"
ROWS = 5


def import_log(folder, root, kind, *without):
    options = ColumnarOptions(without=frozenset(without))
    return import_place(loader.Root(root), kind, open_store(folder), "log", options=options)


def field_texts(fields):
    """Field -> its value as text, in which NaN equals NaN."""
    found = {
        name: find_decoder(name)(data) for name, data in fields.items() if name.endswith(("npy", "json"))
    }
    return texts({name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in found.items()})


def texts(values):
    return {name: repr(one) for name, one in values.items()}


def only_sample(root, contents):
    ((key, (fields, columns)),) = contents(loader.Root(root).open("log")).items()
    return key, fields, columns


def ros_rows(types, ros1):
    """Yield topic, type, log time and message of each row."""
    more = {"seq": 7} if ros1 else {}

    def header(stamp):
        at = types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9)
        return types["std_msgs/msg/Header"](stamp=at, frame_id="base", **more)

    for i in range(ROWS):
        now = ZERO + i * 10_000_000
        yield (
            "/arm/joints",
            JOINT,
            now + 500,
            types[JOINT](
                header=header(now),
                name=["hip", "knee é"],
                position=np.array([i, i / 3]),
                velocity=np.arange(i, dtype=np.float64),
                effort=np.zeros(0),
            ),
        )
        ranges = np.array([i, np.inf, np.nan], np.float32)
        numbers = dict.fromkeys(
            ("angle_min", "angle_max", "angle_increment", "time_increment", "scan_time"), i / 7
        )
        yield (
            "/scan",
            SCAN,
            now + 700,
            types[SCAN](
                header=header(0),
                **numbers,
                range_min=0.0,
                range_max=2.0,
                ranges=ranges,
                intensities=np.zeros(i, np.float32),
            ),
        )
        picture = np.arange(i, i + 2 * 3 * 2 * 2, dtype=np.uint8)  # a line of 8 bytes has 3 pixels of 2
        picture = np.concatenate([picture, picture[:4]])[: 2 * 8]
        yield (
            "/depth",
            IMAGE,
            now + 900,
            types[IMAGE](
                header=header(ZERO + i),
                height=2,
                width=3,
                encoding="16UC1",
                is_bigendian=1,
                step=8,
                data=picture,
            ),
        )


def write_mcap(path, types, compression=mcap.writer.CompressionType.ZSTD, rows=None):
    with path.open("wb") as file:
        writer = mcap.writer.Writer(file, chunk_size=600, compression=compression)
        writer.start()
        channels = {}
        for topic, kind, log_time, message in rows or ros_rows(types.types, ros1=False):
            if topic not in channels:
                text = types.generate_msgdef(kind, ros_version=2)[0].encode()
                schema = writer.register_schema(kind, "ros2msg", text)
                channels[topic] = writer.register_channel(topic, "cdr", schema)
            data = bytes(types.serialize_cdr(message, kind))
            writer.add_message(channels[topic], log_time, data, log_time)
        writer.finish()


def write_bag(writer, types, *, ros1):
    with writer:
        connections = {}
        for topic, kind, log_time, message in ros_rows(types.types, ros1):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=types)
            data = types.serialize_ros1(message, kind) if ros1 else types.serialize_cdr(message, kind)
            writer.write(connections[topic], log_time, data)


@pytest.fixture(scope="module")
def ros1():
    return get_typestore(Stores.ROS1_NOETIC)


@pytest.fixture(scope="module")
def ros2():
    return get_typestore(Stores.ROS2_HUMBLE)


def test_message_is_the_same_in_every_file(tmp_path, ros1, ros2):
    for name in ("bags", "mcap"):
        (tmp_path / name).mkdir()
    one = Ros1Writer(tmp_path / "bags" / "one.bag")
    one.set_compression(Ros1Writer.CompressionFormat.BZ2)
    write_bag(one, ros1, ros1=True)
    write_bag(Ros1Writer(tmp_path / "bags" / "two.bag"), ros1, ros1=True)
    for name, plugin in (("5", StoragePlugin.SQLITE3), ("six", StoragePlugin.MCAP)):
        write_bag(Ros2Writer(tmp_path / "bags" / name, version=9, storage_plugin=plugin), ros2, ros1=False)
    write_mcap(tmp_path / "mcap" / "run 1.mcap", ros2)
    for kind, folder in (("rosbag", "bags"), ("mcap", "mcap")):
        done = import_log(tmp_path / folder, tmp_path / f"root-{kind}", kind)
        assert done.failures == []
    found = contents(loader.Root(tmp_path / "root-rosbag").open("log"))
    found |= contents(loader.Root(tmp_path / "root-mcap").open("log"))
    assert sorted(found) == ["5", "one", "run 1", "six", "two"]
    for key, (fields, columns) in found.items():
        values = field_texts(fields)
        seqs = [values.pop(name) for name in list(values) if name.endswith("header.seq.npy")]
        assert seqs == ([repr([7] * ROWS)] * 3 if key in ("one", "two") else [])
        if key == "5":
            assert values == texts(expected_values(fields))
            assert columns["clock_zero_ns"] == ZERO
            assert columns["duration_ns"] == (ROWS - 1) * 10_000_000 + 700
        del values["episode.json"]
        facts = json.loads(fields["episode.json"])
        assert {name: one["clock"] for name, one in facts["topics"].items()} == {
            "arm.joints": "header.stamp",
            "scan": "log_time",
            "depth": "header.stamp",
        }
        first = field_texts(found["5"][0])
        del first["episode.json"]
        assert values == first, key


def test_import_takes_the_bag_of_a_file_that_was_replaced(tmp_path, ros2):
    for name in ("five", "six"):
        (tmp_path / "in").mkdir(exist_ok=True)
        plugin = StoragePlugin.SQLITE3
        write_bag(Ros2Writer(tmp_path / "in" / name, version=9, storage_plugin=plugin), ros2, ros1=False)
    import_log(tmp_path / "in", tmp_path / "root", "rosbag")
    os.utime(tmp_path / "in/six/six.db3", (2e9, 2e9))
    done = import_log(tmp_path / "in", tmp_path / "root", "rosbag")
    assert (done.failures, done.replaced, done.same, done.samples) == ([], 1, 1, 2)


def expected_values(fields):
    """The values of `ros_rows`, told from the rows themselves."""
    at = [i * 10_000_000 for i in range(ROWS)]
    seconds, rest = [ZERO // 10**9] * ROWS, [ZERO % 10**9 + one for one in at]
    told = {
        "episode.json": json.loads(fields["episode.json"]),
        "arm.joints.ns.npy": at,
        "arm.joints.header.stamp.sec.npy": seconds,
        "arm.joints.header.stamp.nanosec.npy": rest,
        "arm.joints.name.json": [["hip", "knee é"]] * ROWS,
        "arm.joints.position.npy": [[float(i), i / 3] for i in range(ROWS)],
        "arm.joints.velocity.json": [list(map(float, range(i))) for i in range(ROWS)],
        "arm.joints.effort.npy": [[]] * ROWS,
        "scan.ns.npy": [one + 700 for one in at],
        "scan.header.stamp.sec.npy": [0] * ROWS,
        "scan.header.stamp.nanosec.npy": [0] * ROWS,
        "scan.range_min.npy": [0.0] * ROWS,
        "scan.range_max.npy": [2.0] * ROWS,
        "scan.intensities.json": [[0.0] * i for i in range(ROWS)],
        "depth.ns.npy": list(range(ROWS)),
        "depth.header.stamp.sec.npy": seconds,
        "depth.header.stamp.nanosec.npy": [ZERO % 10**9 + i for i in range(ROWS)],
        "depth.encoding.json": ["16UC1"] * ROWS,
        "depth.npy": [],
    }
    for name in ("angle_min", "angle_max", "angle_increment", "time_increment", "scan_time"):
        told[f"scan.{name}.npy"] = [float(np.float32(i / 7)) for i in range(ROWS)]
    for name in ("arm.joints", "scan", "depth"):
        told[f"{name}.header.frame_id.json"] = ["base"] * ROWS
    for name, value in (("height", 2), ("width", 3), ("is_bigendian", 1), ("step", 8)):
        told[f"depth.{name}.npy"] = [value] * ROWS
    scans = find_decoder("scan.ranges.npy")(fields["scan.ranges.npy"])
    assert (scans.dtype, scans.shape, scans[3, 0]) == (np.float32, (ROWS, 3), 3)
    assert np.isinf(scans[:, 1]).all()
    assert np.isnan(scans[:, 2]).all()
    told["scan.ranges.npy"] = scans.tolist()
    depth = find_decoder("depth.npy")(fields["depth.npy"])
    assert (depth.dtype, depth.shape) == (np.uint16, (ROWS, 2, 3, 1))
    assert depth[1, 1].ravel().tolist() == [(9 + 2 * j) * 256 + 10 + 2 * j for j in range(3)]
    told["depth.npy"] = depth.tolist()
    return told


def write_json(path, rows, schema=b"", kind="T", compression=mcap.writer.CompressionType.NONE):
    """rows: topic, log time, message."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        writer = mcap.writer.Writer(file, compression=compression)
        writer.start()
        number = writer.register_schema(kind, "jsonschema", schema or b"{}")
        channels = {}
        for topic, log_time, message in rows:
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, "json", number)
            writer.add_message(channels[topic], log_time, json.dumps(message).encode(), log_time)
        writer.finish()


def test_numbers_of_json_and_what_is_none(tmp_path):
    big = 2**53 + 1
    rows = [
        {"whole": 1, "told": 1, "mixed": 0, "some": 1, "big": big, "list": [1, 2], "on": True, "far": 2**63},
        {"whole": -2, "told": 2, "mixed": 0.5, "big": 0.5, "list": [1, 2.5], "on": False, "far": 1},
        {"whole": 3, "told": 3, "mixed": 4, "some": 2, "big": 1, "list": [0, 0], "on": True, "far": 0},
    ]
    schema = json.dumps({"properties": {"in": {"properties": {"told": {"type": "number"}}}}}).encode()
    write_json(
        tmp_path / "in" / "a.mcap", [("a/b", 5 + i, {"in": row}) for i, row in enumerate(rows)], schema
    )
    assert import_log(tmp_path / "in", tmp_path / "root", "mcap").failures == []
    key, fields, _ = only_sample(tmp_path / "root", contents)
    del fields["episode.json"]
    assert key == "a"
    assert field_texts(fields) == texts(
        {
            "a.b.ns.npy": [0, 1, 2],
            "a.b.in.whole.npy": [1, -2, 3],
            "a.b.in.told.npy": [1.0, 2.0, 3.0],
            "a.b.in.mixed.npy": [0.0, 0.5, 4.0],
            "a.b.in.some.json": [1, None, 2],
            "a.b.in.big.json": [big, 0.5, 1],
            "a.b.in.list.npy": [[1.0, 2.0], [1.0, 2.5], [0.0, 0.0]],
            "a.b.in.on.npy": [True, False, True],
            "a.b.in.far.json": [2**63, 1, 0],
        }
    )


def test_protobuf_by_the_descriptors_of_the_log(tmp_path):
    stamp = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    one = stamp.message_type.add(name="Time")
    one.field.add(name="seconds", number=1, type=3, label=1)
    one.field.add(name="nanos", number=2, type=5, label=1)
    file = descriptor_pb2.FileDescriptorProto(
        name="m.proto", package="m", syntax="proto3", dependency=["t.proto"]
    )
    made = file.message_type.add(name="M")
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("timestamp", 11, 1, ".t.Time"),
            ("speed", 2, 1, ""),
            ("ids", 13, 3, ""),
            ("blob", 12, 1, ""),
            ("name", 9, 1, ""),
            ("inner", 11, 1, ".m.M"),
            ("points", 11, 3, ".t.Time"),
        ],
        1,
    ):
        more = {"type_name": type_name} if type_name else {}
        made.field.add(name=name, number=number, type=kind, label=label, **more)
    pool = descriptor_pool.DescriptorPool()
    for each in (stamp, file):
        pool.AddSerializedFile(each.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("m.M"))
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.mcap").open("wb") as out:
        writer = mcap.writer.Writer(out, compression=mcap.writer.CompressionType.LZ4)
        writer.start()
        descriptors = descriptor_pb2.FileDescriptorSet(file=[file, stamp]).SerializeToString()
        channel = writer.register_channel(
            "/m", "protobuf", writer.register_schema("m.M", "protobuf", descriptors)
        )
        for i in range(2):
            value = message(
                speed=i / 4, ids=[i, 2**32 - 1], blob=b"\x01\xff", name=f"n{i}", points=[{"nanos": i}]
            )
            value.timestamp.nanos = 9 + i
            value.inner.name = "deep"
            writer.add_message(channel, 7, value.SerializeToString(), 7)
        writer.finish()
    assert import_log(tmp_path / "in", tmp_path / "root", "mcap").failures == []
    _, fields, _ = only_sample(tmp_path / "root", contents)
    assert json.loads(fields["episode.json"])["topics"]["m"]["clock"] == "timestamp"
    values = field_texts(fields)
    inner = json.loads(fields["m.inner.json"])
    assert [one[0]["name"] for one in inner] == ["deep", "deep"]
    for name in ("episode.json", "m.inner.json"):
        del values[name]
    assert values == texts(
        {
            "m.ns.npy": [0, 1],
            "m.timestamp.seconds.npy": [0, 0],
            "m.timestamp.nanos.npy": [9, 10],
            "m.speed.npy": [0.0, 0.25],
            "m.ids.npy": [[0, 2**32 - 1], [1, 2**32 - 1]],
            "m.blob.npy": [[1, 255], [1, 255]],
            "m.name.json": ["n0", "n1"],
            "m.points.json": [[{"nanos": i, "seconds": 0}] for i in range(2)],
        }
    )
    assert find_decoder("npy")(fields["m.ids.npy"]).dtype == np.uint32


def pictures(number):
    y, x = np.mgrid[0:48, 0:64]
    return [np.stack([x * 3 + i * 10, y * 5, x + y], -1).astype(np.uint8) for i in range(number)]


def encode_pictures(pictures, name):
    """Frames of a video, a packet each, or single pictures."""
    if name in ("jpeg", "png"):
        out = []
        for one in pictures:
            file = io.BytesIO()
            Image.fromarray(one).save(file, name)
            out.append(file.getvalue())
        return out
    coder = av.CodecContext.create({"h264": "libx264", "h265": "libx265", "av1": "libsvtav1"}[name], "w")
    coder.width, coder.height, coder.pix_fmt, coder.time_base = 64, 48, "yuv420p", Fraction(1, 30)
    coder.options = {
        "h264": {"tune": "zerolatency", "x264-params": "scenecut=0:keyint=3:min-keyint=3"},
        "h265": {"x265-params": "log-level=none:pools=none:bframes=0"},
        "av1": {"preset": "12", "svtav1-params": "lp=1:pred-struct=1"},
    }[name]
    packets = []
    with ordinary_priority():
        for i, one in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(one).reformat(format="yuv420p")
            frame.pts = i
            packets += coder.encode(frame)
        return [bytes(packet) for packet in [*packets, *coder.encode(None)]]


@pytest.mark.parametrize("name", ["h264", "h265", "av1", "jpeg", "png"])
def test_packets_are_copied(name, tmp_path):
    given_ = pictures(5)
    frames = encode_pictures(given_, name)
    assert len(frames) == 5
    times = [0, 33_333_333, 66_666_667, 100_000_000, 3_000_000_123 if name == "png" else 133_333_333]
    kind = "CompressedImage" if name in ("jpeg", "png") else "CompressedVideo"
    rows = [
        ("/cam", ZERO + at, {"format": name, "data": base64.b64encode(one).decode(), "frame_id": "c"})
        for at, one in zip(times, frames, strict=True)
    ]
    write_json(tmp_path / "in" / "a.mcap", rows, kind=f"foxglove.{kind}")
    assert import_log(tmp_path / "in", tmp_path / "root", "mcap").failures == []
    _, fields, _ = only_sample(tmp_path / "root", contents)
    assert find_decoder("npy")(fields["cam.ns.npy"]).tolist() == times
    assert "cam.mp4.packets" in fields
    step = 1000 if name == "png" else 1  # a gap of more than 2^31 ns
    with av.open(io.BytesIO(fields["cam.mp4"])) as video:
        packets = [packet for packet in video.demux(video=0) if packet.size]
        assert [packet.pts * packet.time_base * 10**9 for packet in packets] == [
            at // step * step for at in times
        ]
        if name in ("jpeg", "png"):
            assert [bytes(packet) for packet in packets] == frames
    shown = loader.video(frames=5)(fields["cam.mp4"])
    if name in ("jpeg", "png"):
        own = np.stack([loader.image()(one) for one in frames])
        assert np.abs(shown.astype(int) - own).max() <= (8 if name == "jpeg" else 0)
    else:
        plain = b"".join(frames)
        with av.open(io.BytesIO(plain), format={"h264": "h264", "h265": "hevc", "av1": "obu"}[name]) as video:
            own = [frame.to_ndarray() for frame in video.decode(video=0)]
        with av.open(io.BytesIO(fields["cam.mp4"])) as video:
            again = [frame.to_ndarray() for frame in video.decode(video=0)]
        assert len(own) == 5
        assert all((one == other).all() for one, other in zip(own, again, strict=True))


def test_refused_topics_are_named_and_can_be_skipped(tmp_path):
    frames = [base64.b64encode(one).decode() for one in encode_pictures(pictures(4), "h264")]
    deep = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep, "png")
    good = [("/good", 10 + i, {"x": i}) for i in range(2)]
    refused = (
        ("T", [("/bad", 10 + at, {"x": 1}) for at in (3, 5, 5)], "row 2: its log_time 15 is not after 15"),
        ("T", [("/bad", 10, {"x": 1}), ("bad", 12, {"x": 1})], "two topics with one name"),
        ("T", [("/bad", 10, {"ns": 1})], "the name of its clock"),
        ("T", [("/bad", 10, [1])], "row 0: a message of JSON is an object"),
        ("foxglove.CompressedVideo", [("/bad", 10, {"format": "vp9", "data": ""})], "of the format 'vp9'"),
        (
            "foxglove.CompressedVideo",
            [("/bad", 10 + i, {"format": "h264", "data": one}) for i, one in enumerate(frames[1:])],
            "topic /bad",
        ),
        (
            "foxglove.CompressedImage",
            [("/bad", 10, {"format": "png", "data": base64.b64encode(deep.getvalue()).decode()})],
            "other than 8 bits",
        ),
    )
    for number, (kind, rows, said) in enumerate(refused):
        path = tmp_path / str(number) / "in" / "a.mcap"
        path.parent.parent.mkdir()
        write_json(path, [*rows, *(good if kind == "T" else [])], kind=kind)
        (failure,) = import_log(path.parent, path.parent.parent / "root", "mcap").failures
        assert (said in failure, "a.mcap, topic " in failure) == (True, True), failure
        if kind == "T":
            done = import_log(path.parent, path.parent.parent / "other", "mcap", "bad")
            assert done.failures == []
            _, fields, _ = only_sample(path.parent.parent / "other", contents)
            assert [name for name in fields if "bad" in name] == []
    with (path.parent / "a.mcap").open("wb") as file:
        writer = mcap.writer.Writer(file)
        writer.start()
        channel = writer.register_channel(
            "/bad", "flatbuffer", writer.register_schema("T", "flatbuffer", b"")
        )
        writer.add_message(channel, 1, b"", 1)
        writer.finish()
    (failure,) = import_log(path.parent, tmp_path / "flat", "mcap").failures
    assert [one in failure for one in ("topic /bad", "flatbuffer", "--without /bad")] == [True] * 3, failure


BASES = ["bool", "uint8", "int16", "uint32", "int64", "float32", "float64", "string", "char"]


@st.composite
def definitions(draw):
    """The text of a message with another in it, and the fields' types."""
    kinds = st.tuples(st.sampled_from(BASES), st.sampled_from(["", "[]", "[3]"]))
    inner, outer = draw(st.lists(kinds, min_size=1, max_size=5)), draw(st.lists(kinds, max_size=5))
    lines = [f"{kind}{many} f{i}" for i, (kind, many) in enumerate(outer)]
    for i, many in enumerate(draw(st.lists(st.sampled_from(["", "[]", "[2]"]), max_size=3))):
        lines.insert(draw(st.integers(0, len(lines))), f"Inner{many} g{i}")
    below = [f"{kind}{many} h{i}" for i, (kind, many) in enumerate(inner)]
    return "\n".join(lines or ["bool f"]) + "\n" + "=" * 80 + "\nMSG: p/Inner\n" + "\n".join(below) + "\n"


EMPTY_ARRAY = f"float64[] f0\nuint8 f1\n{'=' * 80}\nMSG: p/Inner\nbool h\n"


@example(EMPTY_ARRAY, 11, True, True)  # it has no padding
@given(definitions(), st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_messages_are_read_as_rosbags_reads_them(text, seed, cdr, little):
    kind = "p/msg/Outer"
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(text, kind))
    rng = np.random.default_rng(seed)

    def value(told):
        node, of = told[0].name, told[1]
        if node == "NAME":
            return store.types[of](**{name: value(one) for name, one in store.fielddefs[of][1]})
        if node in ("ARRAY", "SEQUENCE"):
            values = [value(of[0]) for _ in range(of[1] or rng.integers(0, 4))]
            plain = of[0][0].name == "BASE" and of[0][1][0] != "string"
            dtype = {"bool": "bool", "char": "u1"}.get(of[0][1][0], of[0][1][0])
            return np.array(values, dtype) if plain else values
        name = of[0]
        if name == "string":
            return "é" * int(rng.integers(0, 4))
        return {"bool": bool, "float32": np.float32, "float64": float}.get(name, int)(
            rng.integers(0, 2, 1)[0]
        )

    def plain(one):
        if hasattr(one, "__dataclass_fields__"):
            return {
                name: plain(getattr(one, name)) for name in one.__dataclass_fields__ if name != "__msgtype__"
            }
        if isinstance(one, np.ndarray):
            return one.tolist()
        return [plain(each) for each in one] if isinstance(one, list) else one

    def to_lists(one):
        if isinstance(one, dict):
            return {name: to_lists(each) for name, each in one.items()}
        if isinstance(one, list):
            return [to_lists(each) for each in one]
        return one.tolist() if isinstance(one, np.ndarray | np.generic) else one

    message = value((type("Kind", (), {"name": "NAME"}), kind))
    how = ("cdr", "ros2msg") if cdr else ("ros1", "ros1msg")
    if cdr:
        data = store.serialize_cdr(message, kind, little_endian=little)
    else:
        data = store.serialize_ros1(message, kind)
    read = ros_decoder(LogChannel("/t", how[0], kind, how[1], text.encode()))
    assert to_lists(read(bytes(data))) == plain(message)


def test_definition_runs_no_code_and_ends(tmp_path):
    trap = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    for text in (
        f'uint8 x\nstring S="\'; {code} #"\n',
        f'uint8 x "{code}"\n',
        f"uint8 x\n{code}\n",
        "Outer x\n",
        f"Inner[4000000000] x\n{'=' * 80}\nMSG: p/Inner\n",
        "uint8[4000000000] x\n",
        "uint8[-1] x\n",
        "uint8 x\nmissing/Type y\n",
    ):
        with contextlib.suppress(PenstockError, TypesysError):
            ros_decoder(LogChannel("/t", "ros1", "p/msg/Outer", "ros1msg", text.encode()))(b"\7")
    assert not trap.exists()


def test_database_with_a_view_that_never_ends_is_refused(tmp_path, ros2):
    write_bag(Ros2Writer(tmp_path / "in", version=9, storage_plugin=StoragePlugin.SQLITE3), ros2, ros1=False)
    (path,) = (tmp_path / "in").glob("*.db3")
    database = sqlite3.connect(path)
    database.execute("DROP TABLE schema")
    endless = "WITH RECURSIVE c(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM c) SELECT max(x) AS schema_version FROM c"
    database.execute(f"CREATE VIEW schema AS {endless}")
    database.commit()
    database.close()
    (failure,) = import_log(tmp_path / "in", tmp_path / "root", "rosbag").failures
    assert "views, triggers or virtual tables" in failure


def test_damage_and_packed_bombs_are_named(tmp_path, ros1, ros2, monkeypatch):
    for name in ("sound", "in"):
        (tmp_path / name).mkdir()
    write_mcap(tmp_path / "sound" / "a.mcap", ros2)
    writer = Ros1Writer(tmp_path / "sound" / "b.bag")
    writer.set_compression(Ros1Writer.CompressionFormat.BZ2)
    write_bag(writer, ros1, ros1=True)
    mcap_data, bag = (tmp_path / "sound" / "a.mcap").read_bytes(), (tmp_path / "sound" / "b.bag").read_bytes()
    flipped = bytearray(mcap_data)
    flipped[len(mcap_data) // 3] ^= 1
    begin = bag.index(b"BZh")
    for number, (name, data) in enumerate(
        (
            ("a.mcap", mcap_data[: len(mcap_data) // 2]),
            ("a.mcap", bytes(flipped)),
            ("a.mcap", b""),
            ("b.bag", bag[: len(bag) // 2]),
            ("b.bag", bag[: begin + 20] + b"\0" * 9 + bag[begin + 29 :]),
            ("b.bag", b"#ROSBAG V2.0" + b"\0" * 99),
            ("metadata.yaml", b"rosbag2_bagfile_information: {relative_file_paths: [../b.db3]}"),
            ("metadata.yaml", b"a: &a [x]\nrosbag2_bagfile_information: {relative_file_paths: [*a]}"),
        )
    ):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(data)
        kind = "mcap" if name.endswith("mcap") else "rosbag"
        (failure,) = import_log(path.parent, tmp_path / f"root{number}", kind).failures
        assert name in failure
    monkeypatch.setattr("penstock.formats.episodes.mcap_import.MAX_CHUNK_BYTES", 500)
    monkeypatch.setattr("penstock.formats.episodes.rosbag_import.MAX_CHUNK_BYTES", 500)
    monkeypatch.setattr("penstock.formats.episodes.episode.MAX_FIELD_BYTES", 50)
    for kind in ("mcap", "rosbag"):
        (failure,) = import_log(tmp_path / "sound", tmp_path / f"small-{kind}", kind).failures
        assert "chunk of" in failure, failure
    monkeypatch.undo()
    monkeypatch.setattr("penstock.formats.episodes.episode.MAX_FIELD_BYTES", 50)
    (failure,) = import_log(tmp_path / "sound", tmp_path / "small", "mcap").failures
    assert ("more than 50 bytes" in failure, "topic /" in failure) == (True, True), failure


@pytest.mark.parametrize("nbytes", [2**29, 2**62])
def test_size_that_a_chunk_states_is_not_allocated(tmp_path, nbytes):
    chunk = struct.pack("<QQQIIQ", 0, 0, 10, 0, 0, nbytes) + bytes(10)
    header = struct.pack("<BQII", 1, 8, 0, 0)
    data = b"\x89MCAP0\r\n" + header + struct.pack("<BQ", 6, len(chunk)) + chunk
    path = tmp_path / "a.mcap"
    path.write_bytes(data)
    tracemalloc.start()
    with path.open("rb", buffering=0) as file, pytest.raises(Corrupt) as caught:
        list(mcap_messages(file, "a.mcap", StatedCounts()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**25
    assert str(caught.value).startswith("a.mcap: ")


def test_mcap_of_a_killed_recorder_names_the_remedy(tmp_path):
    out = io.BytesIO()
    writer = mcap.writer.Writer(out, compression=mcap.writer.CompressionType.NONE, chunk_size=100)
    writer.start()
    schema = writer.register_schema("thing", "jsonschema", b"{}")
    channel = writer.register_channel("/thing", "json", schema)
    for n in range(20):
        writer.add_message(channel, ZERO + n, b'{"x":%d}' % n, ZERO + n)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.mcap").write_bytes(out.getvalue()[:-10])  # never finished, and cut
    (failure,) = import_log(tmp_path / "in", tmp_path / "root", "mcap").failures
    assert "a.mcap: it ends in the middle of a record" in failure
    assert "mcap recover FILE -o RECOVERED" in failure
