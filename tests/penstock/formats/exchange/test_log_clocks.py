"""Clocks of robot logs: the stamps of a topic, the log time, and logs whose topics are on different clocks."""

import json
from pathlib import Path
from typing import Any

import mcap.writer
import numpy as np
import pytest
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, get_typestore

import loader
from loader.errors import InvalidRuntime
from loader.modalities import find_decoder
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import ImportReport, import_place
from tests.penstock.formats.versions import contents
from tests.refusals import refusal

ZERO = 1_760_000_000 * 10**9
STEP = 10**8
N = 40
TWIST = "geometry_msgs/msg/Twist"
POINT = "geometry_msgs/msg/PointStamped"
Rows = list[tuple[int, dict[str, Any]]]


def stamp(ns: int) -> dict[str, Any]:
    return {"header": {"stamp": {"sec": ns // 10**9, "nanosec": ns % 10**9}}}


def write_log(path: Path, topics: dict[str, Rows]) -> None:
    """Write an MCAP file. topics: topic -> log time and message of each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(log_time, topic, message) for topic, own in topics.items() for log_time, message in own]
    with path.open("wb") as file:
        writer = mcap.writer.Writer(file)
        writer.start()
        schema = writer.register_schema("any", "jsonschema", b"{}")
        channels = {topic: writer.register_channel(topic, "json", schema) for topic in topics}
        for log_time, topic, message in sorted(rows, key=lambda row: row[0]):
            writer.add_message(channels[topic], log_time, json.dumps(message).encode(), log_time)
        writer.finish()


def import_log(folder: Path, kind: str = "mcap", **clocks: str) -> tuple[ImportReport, loader.Root]:
    root = loader.Root(folder.parent / f"root-{len(list(folder.parent.iterdir()))}")
    options = ColumnarOptions(clocks={f"/{topic}": clock for topic, clock in clocks.items()})
    return import_place(root, kind, open_store(folder), "log", options=options), root


def import_failure(folder: Path, kind: str = "mcap", **clocks: str) -> str:
    report, _ = import_log(folder, kind, **clocks)
    (failure,) = report.failures
    return failure


def times(root: loader.Root) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the clock's name, and the times, of each topic of the only log."""
    ((fields, _),) = contents(root.open("log")).values()
    topics = json.loads(fields["episode.json"])["topics"]
    names = {topic: facts["clock"] for topic, facts in topics.items()}
    return names, {topic: find_decoder("ns.npy")(fields[f"{topic}.ns.npy"]).tolist() for topic in topics}


def camera(shift_ns: int, rows: int = N) -> Rows:
    """Return stamped messages, 10 a second. shift_ns: stamp minus log time."""
    log_times = [ZERO + k * STEP for k in range(rows)]
    return [
        (log_time, {**stamp(log_time + shift_ns), "position": [float(k)]})
        for k, log_time in enumerate(log_times)
    ]


def commands(rows: int = N) -> Rows:
    return [(ZERO + k * STEP + STEP // 2, {"value": float(k)}) for k in range(rows)]


UPTIME = 10**7 - ZERO
"""Stamp minus log time of a camera that counts from its start."""


def test_import_refuses_a_topic_that_stamps_by_its_own_clock(tmp_path: Path) -> None:
    write_log(tmp_path / "in" / "a.mcap", {"/cam": camera(UPTIME), "/cmd": commands()})
    failure = import_failure(tmp_path / "in")
    assert "a.mcap, topic /cam, row 0: its header.stamp is off by -1,759,999,999.990 s" in failure
    assert "--clock /cam=log_time" in failure
    assert "--clock log_time" in failure


@pytest.mark.parametrize("clock", ["/cam=log_time", "log_time", "cam=log_time"])
def test_chosen_log_time_aligns_the_windows(clock: str, tmp_path: Path) -> None:
    write_log(tmp_path / "in" / "a.mcap", {"/cam": camera(UPTIME), "/cmd": commands()})
    command = ["import", "mcap", str(tmp_path / "in"), "log", "--root", str(tmp_path / "root")]
    assert main([*command, "--clock", clock]) == 0
    root = loader.Root(tmp_path / "root")
    names, _ = times(root)
    assert names == {"cam": "log_time", "cmd": "log_time"}
    view = root.open("log").select("cam.position.npy", "cmd.value.npy")
    at = {"cam.position.npy": [0], "cmd.value.npy": [0]}
    windows = loader.windows(view, anchor="cmd.value.npy", at=at)
    plan = loader.plan({"log": windows}, seed=1, global_batch=N)
    with loader.Loader(plan, steps=1) as batches:
        batch = next(iter(batches))
    assert np.array_equal(batch["cam.position.npy"].ravel(), batch["cmd.value.npy"].ravel())
    assert set(batch["cam.position.npy.age_ns"].ravel().tolist()) == {STEP // 2}


def test_chosen_stamps_are_kept_whatever_their_clock(tmp_path: Path) -> None:
    write_log(tmp_path / "in" / "a.mcap", {"/cam": camera(UPTIME), "/cmd": commands()})
    report, root = import_log(tmp_path / "in", cam="stamp")
    assert report.failures == []
    names, own = times(root)
    assert names == {"cam": "header.stamp", "cmd": "log_time"}
    assert (own["cam"][0], own["cmd"][0]) == (0, STEP // 2 - UPTIME)
    assert "topic /cmd: its stamps were chosen" in import_failure(tmp_path / "in", cam="stamp", cmd="stamp")


def test_import_refuses_a_clock_that_is_set_during_the_recording(tmp_path: Path) -> None:
    early = camera(-(10**6), 20)
    late = camera(3600 * 10**9)[20:]
    write_log(
        tmp_path / "in" / "a.mcap", {"/cam": early + late, "/lidar": camera(-(10**7)), "/cmd": commands()}
    )
    failure = import_failure(tmp_path / "in")
    assert "topic /cam, row 20: its header.stamp is off by +3,600.000 s" in failure
    assert "topic /lidar" not in failure
    write_log(tmp_path / "alone" / "in" / "a.mcap", {"/cam": early + late})
    assert "topic /cam, row 20: its header.stamp is off by +3,600.001 s" in import_failure(
        tmp_path / "alone" / "in"
    )


def test_topics_with_a_delay_of_seconds_keep_their_stamps(tmp_path: Path) -> None:
    topics = {"/cam": camera(-(10**6)), "/detector": camera(-4 * 10**9), "/cmd": commands()}
    write_log(tmp_path / "in" / "a.mcap", topics)
    report, root = import_log(tmp_path / "in")
    assert report.failures == []
    names, own = times(root)
    assert names == {"cam": "header.stamp", "detector": "header.stamp", "cmd": "log_time"}
    assert own["detector"][0] == 0
    assert own["cam"][0] == 4 * 10**9 - 10**6


def simulation_rows(step_ns: int, rows: int, offset_ns: int = 0, first: int = 0) -> Rows:
    """Return rows of a simulation at a third of the log time's speed, which pauses for an hour after 20 s."""
    rows_ = []
    for k in range(first, rows):
        now = k * step_ns
        pause = 3600 * 10**9 if now > 20 * 10**9 else 0
        rows_.append((ZERO + 3 * now + pause, {**stamp(now + offset_ns), "value": k}))
    return rows_


def test_simulation_is_aligned_by_its_own_time(tmp_path: Path) -> None:
    topics = {
        "/cam": simulation_rows(STEP, 400),
        "/odometry": simulation_rows(STEP // 2, 800),
        "/map": simulation_rows(10**10, 4),
        "/late": simulation_rows(STEP, 300, first=250),
    }
    write_log(tmp_path / "in" / "a.mcap", topics)
    report, root = import_log(tmp_path / "in")
    assert report.failures == []
    names, own = times(root)
    assert set(names.values()) == {"header.stamp"}
    assert own["cam"] == [k * STEP for k in range(400)]
    assert own["map"] == [k * 10**10 for k in range(4)]
    assert own["late"][0] == 250 * STEP


def test_simulation_that_is_faster_than_the_log_time_keeps_its_stamps(tmp_path: Path) -> None:
    slow_topic = [(ZERO + k * 10**9, {**stamp(k * 10**10), "value": k}) for k in range(20)]
    write_log(tmp_path / "in" / "a.mcap", {"/map": slow_topic})
    report, root = import_log(tmp_path / "in")
    assert report.failures == []
    assert times(root)[1] == {"map": [k * 10**10 for k in range(20)]}


def test_simulation_refuses_a_topic_of_the_log_time_or_of_another_simulation(tmp_path: Path) -> None:
    topics = {"/cam": simulation_rows(STEP, 400), "/odometry": simulation_rows(STEP // 2, 800)}
    write_log(tmp_path / "a" / "in" / "a.mcap", {**topics, "/other": simulation_rows(STEP, 400, 60 * 10**9)})
    failure = import_failure(tmp_path / "a" / "in")
    assert (
        "topic /other, row 0: its header.stamp is off by +60.000 s from the header.stamp of /odometry"
        in failure
    )
    write_log(tmp_path / "b" / "in" / "a.mcap", {**topics, "/cmd": commands()})
    failure = import_failure(tmp_path / "b" / "in")
    assert "topic /cam, row 0" in failure
    assert "topic /odometry, row 0" in failure
    assert "log_time, which /cmd follows" in failure


@pytest.mark.parametrize("kind", ["bag", "db3", "mcap"])
def test_bags_refuse_a_topic_that_stamps_by_its_own_clock(kind: str, tmp_path: Path) -> None:
    is_ros1 = kind == "bag"
    store = get_typestore(Stores.ROS1_NOETIC if is_ros1 else Stores.ROS2_HUMBLE)
    types: Any = store.types
    folder = tmp_path / "in"
    folder.mkdir()
    writer: Any = Ros1Writer(folder / "a.bag")
    if not is_ros1:
        plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
        writer = Ros2Writer(folder / "a", version=9, storage_plugin=plugin)
    serialize: Any = store.serialize_ros1 if is_ros1 else store.serialize_cdr
    vector = types["geometry_msgs/msg/Vector3"](x=0.0, y=0.0, z=0.0)
    more = {"seq": 1} if is_ros1 else {}
    with writer:
        points = writer.add_connection("/cam", POINT, typestore=store)
        twists = writer.add_connection("/cmd", TWIST, typestore=store)
        for k in range(5):
            time = types["builtin_interfaces/msg/Time"](sec=1, nanosec=k * STEP)
            header = types["std_msgs/msg/Header"](stamp=time, frame_id="", **more)
            point = types[POINT](header=header, point=types["geometry_msgs/msg/Point"](x=0.0, y=0.0, z=0.0))
            twist = types[TWIST](linear=vector, angular=vector)
            writer.write(points, ZERO + k * STEP, serialize(point, POINT))
            writer.write(twists, ZERO + k * STEP, serialize(twist, TWIST))
    assert "topic /cam, row 0: its header.stamp is off by -1,759,999,999.000 s" in import_failure(
        folder, "rosbag"
    )
    report, root = import_log(folder, "rosbag", cam="log_time")
    assert report.failures == []
    _, own = times(root)
    assert own["cam"] == own["cmd"] == [k * STEP for k in range(5)]


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        (["/cam=stmp"], "did you mean 'stamp'?"),
        (["=stamp"], "give its name"),
        (["/cam=stamp", "/cam=log_time"], "already has the clock 'stamp'"),
    ],
)
def test_clock_option_refuses_what_is_no_clock(
    clocks: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "in" / "a.mcap", {"/cmd": commands(2)})
    command = ["import", "mcap", str(tmp_path / "in"), "log", "--root", str(tmp_path / "root")]
    options = [word for clock in clocks for word in ("--clock", clock)]
    assert main([*command, *options]) == 2
    assert message in capsys.readouterr().err


def test_clock_option_is_for_logs_only(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with refusal(InvalidRuntime, what="--clock", given="files"):
        import_log(tmp_path / "in", "files", cam="stamp")
