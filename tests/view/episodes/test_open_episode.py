"""What the page takes of an episode at a time, against the windows that the loader delivers."""

import io
import json
import tarfile
from dataclasses import replace

import mcap.writer
import numpy as np
import pytest

import loader
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.errors import Corrupt, InvalidRuntime
from loader.modalities import encode
from loader.modalities.row_blocks import with_row_blocks
from loader.modalities.video.packet_table import packets_bytes, read_packets
from loader.modalities.video.timeline import Timeline
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.run_import import import_place
from penstock.view.episodes import bands
from penstock.view.episodes import open_episode as module
from penstock.view.episodes.bands import fault_spans, keep_spans, language_spans
from penstock.view.episodes.episode_record import episode_record, moment, step_time
from penstock.view.episodes.lanes import groups, stream_lanes
from penstock.view.episodes.open_episode import is_episode, open_episode
from penstock.view.episodes.stream_summary import read_rows
from penstock.view.inspect.version_record import sample_fields
from penstock.view.open_data import EPISODES_BYTES
from tests.refusals import refusal
from tests.run.numbered_video import read_numbers
from tests.view.episodes.rig import HOSTILE, RATES, page_windows, write_rig
from tests.view.episodes.rig import episode_fields as rig_fields

CAMERAS = tuple(f"cam.{name}.mp4" for name in RATES)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with loader.Root(tmp_path_factory.mktemp("rig") / "root") as root:
        yield write_rig(root)


def open_row(version, ordinal=0):
    return open_episode(version, ordinal, sample_fields(version, [ordinal])[0])


def test_moment_is_the_window_of_the_loader(rig):
    episode = open_row(rig)
    plan = loader.plan({"rig": page_windows(rig)}, seed=1, global_batch=10)
    rows = set()
    with loader.Loader(plan, framework="numpy", workers=0, epochs=1) as batches:
        for batch in batches:
            for slot, row in enumerate(batch["row"].tolist()):
                rows.add(row)
                at = int(batch["anchor_ns"][slot]) - episode.origin_ns
                shown = {one.field: one for one in moment(episode, at).tracks}
                assert moment(episode, at).row == row
                for name in (*CAMERAS, "state.npy", "action.npy"):
                    assert shown[name].age_ns == batch[f"{name}.age_ns"][slot, 0]
                    assert shown[name].is_pad == batch[f"{name}.is_pad"][slot, 0]
                for name in CAMERAS:
                    assert read_numbers(batch[name][slot]) == [shown[name].number]
                assert np.array_equal(batch["state.npy"][slot, 0], np.float32(shown["state.npy"].values))
    assert rows == set(range(150))


def test_frame_is_the_one_that_was_picked(rig):
    episode = open_row(rig)
    for name in CAMERAS:
        for number in (0, 1, 37, episode.n_values(name) - 1):
            assert read_numbers(episode.frame(name, number)[None]) == [number]
        n_frames = episode.n_values(name)
        with refusal(InvalidRuntime, what="frame", where=name, given=n_frames, accepted=[0, n_frames - 1]):
            episode.frame(name, n_frames)


def test_steps_go_from_frame_to_frame_and_end_at_the_ends(rig):
    episode = open_row(rig)
    name, at, seen = CAMERAS[2], 0, []
    for _ in range(episode.n_values(name) + 3):
        seen.append(episode.row_number(name, at))
        at = step_time(episode, at, name, 1)
    assert seen == [*range(episode.n_values(name)), *[episode.n_values(name) - 1] * 3]
    assert step_time(episode, at, name, -(10**6)) == 0
    with refusal(InvalidRuntime, what="step", where="language.jsonl", given=1):
        step_time(episode, 0, "language.jsonl", 1)


def test_video_without_a_packet_table_is_shown_too(tmp_path):
    data = rig_fields()["cam.left.mp4"]
    with loader.Root(tmp_path / "root") as root, root.write("rig") as writer:
        clock = np.arange(10, dtype=np.int64) * 10**8
        writer.add("ep", {"cam.mp4": data, "action.npy": np.zeros((10, 2)), "action.ns.npy": clock})
    episode = open_row(loader.Root(tmp_path / "root").open("rig@1"))
    assert episode.errors == {}
    assert read_numbers(episode.frame("cam.mp4", 31)[None]) == [31]
    assert moment(episode, 5 * 10**8).tracks[1].number == 12


def test_episode_of_steps_has_no_ages(tmp_path):
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    images = np.zeros((20, 24, 32, 3), np.uint8)
    images[7] = 200
    with loader.Root(tmp_path / "root") as root, root.write("sim") as writer:
        writer.add("a/demo_1", {"actions.npy": rows, "obs.image.npy": images, "episode.json": {"data": {}}})
    version = loader.Root(tmp_path / "root").open("sim@1")
    episode = open_row(version)
    record = episode_record(episode)
    assert (record.unit, record.length_ns, record.anchor) == ("step", 20, "actions.npy")
    assert [one.field for one in record.cameras] == ["obs.image.npy"]
    at = moment(episode, 7)
    assert [(one.number, one.age_ns) for one in at.tracks] == [(7, None), (7, None)]
    assert at.tracks[0].values == (14.0, 15.0)
    assert episode.frame("obs.image.npy", 7).min() == 200
    assert not is_episode(version, ["actions.npy", "jpg"])


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path):
    usual = rig_fields()
    back = usual["action.ns.npy"].copy()
    back[3] = back[2]
    table = usual["cam.left.mp4.packets"]
    changes = {
        "cam.left.mp4": usual["cam.right.mp4"],
        "action.ns.npy": back,
        "language.jsonl": b'{"start_ns": 1.5}\n',
        "cam.left.mp4.packets": table,
    }
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root, **changes)
        record = episode_record(open_row(version))
        at = moment(open_row(version), 10**9)
    assert "packet table" in record.errors["cam.left.mp4"]
    assert "row 3" in record.errors["action.npy"]
    assert "line 1" in record.errors["language"]
    assert record.anchor == "state.npy"
    assert [one.field for one in at.tracks] == ["state.npy", "cam.right.mp4", "cam.wrist.mp4"]
    assert all(not one.error for one in at.tracks)
    assert {one.field: bool(one.error) for one in record.cameras}["cam.left.mp4"]


def test_damaged_clock_does_not_turn_times_into_steps(tmp_path):
    usual = rig_fields()
    back = np.zeros(3000, np.int64)
    keep = {name: data for name, data in usual.items() if name.startswith(("cam.", "state."))}
    with loader.Root(tmp_path / "root") as root, root.write("rig") as writer:
        writer.add("ep", keep | {"state.ns.npy": back})
    episode = open_row(loader.Root(tmp_path / "root").open("rig@1"))
    record = episode_record(episode)
    assert (record.unit, record.anchor, list(record.errors)) == ("s", "", ["state.npy"])
    assert [(one.number, one.error) for one in moment(episode, 10**9).tracks] == [
        (24, ""),
        (30, ""),
        (29, ""),
    ]


def test_lanes_follow_the_leading_words():
    humanoid = [
        f"k{side}{joint}"
        for side in ("Left", "Right")
        for joint in ("ShoulderPitch", "Elbow", "WristYaw", "WristRoll", "Hip")
    ]
    assert groups(humanoid) == [(0, 5), (5, 10)]
    assert groups([f"motor_{n}" for n in range(14)]) == [(0, 8), (8, 14)]
    assert groups(["x", "y", "z"]) == [(0, 3)]
    assert groups([]) == []
    for n in (1, 8, 9, 64, 200):
        spans = groups([str(dim) for dim in range(n)])
        assert [first for first, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
        assert spans[-1][1] == n
        assert all(stop - first <= 8 for first, stop in spans)


def test_state_and_its_action_share_lanes_only_by_name(rig, tmp_path):
    lanes, n_undrawn = stream_lanes(open_row(rig).streams)
    assert n_undrawn == 0
    assert [(lane.field, lane.dashed, len(lane.labels)) for lane in lanes] == [
        ("action.npy", "", 2),
        ("state.npy", "", 3),
    ]
    dims = {"dims": ["left_a", "left_b"]}
    with (
        loader.Root(tmp_path / "root") as root,
        root.write("arm", facts={"action.npy": dims, "state.npy": dims}) as writer,
    ):
        clock = np.arange(4, dtype=np.int64)
        arrays = dict.fromkeys(("action.npy", "state.npy"), np.zeros((4, 2)))
        writer.add("ep", {**arrays, "action.ns.npy": clock, "state.ns.npy": clock})
    ((lane,), _) = stream_lanes(open_row(loader.Root(tmp_path / "root").open("arm@1")).streams)
    assert (lane.field, lane.dashed, lane.name, lane.labels) == (
        "state.npy",
        "action.npy",
        "left",
        ("a", "b"),
    )


def test_language_ends_at_the_next_line_of_its_style(rig):
    spans, error = language_spans(open_row(rig), {})
    assert error == ""
    assert [(one.kind, one.first_ns, one.last_ns) for one in spans] == [
        ("subtask", 0, 10**9),
        ("subtask", 10**9, 3 * 10**9),
        ("task", 0, 2 * 10**9),
    ]
    assert "\u202e" not in spans[1].text
    assert HOSTILE[:10] in spans[1].text


def test_bands_show_rows_that_are_kept_gaps_and_frozen_frames(rig, tmp_path):
    spans, n, error = keep_spans(open_row(rig), "action.npy")
    assert (n, error) == (125, "")
    assert [(one.first_ns, one.last_ns) for one in spans] == [
        (0, 1_500_000_000),
        (2_000_000_000, 3_000_000_000),
    ]
    assert fault_spans(open_row(rig)) == ((), "")
    usual = rig_fields()
    clock = usual["state.ns.npy"].copy()
    clock[1000:] += 10**8
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root, **{"state.ns.npy": clock, "keep.npy": np.ones(7, bool)})
        episode = open_row(version)
    (gap,), _ = fault_spans(episode)
    assert (gap.kind, gap.first_ns, gap.last_ns, gap.detail) == (
        "gap",
        999 * 10**6,
        1100 * 10**6,
        "state.npy",
    )
    assert "7 rows" in keep_spans(episode, "action.npy")[2]


def test_spans_that_are_left_out_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(bands, "MOST_SPANS", 2)
    usual = rig_fields(cameras={})
    clock = usual["state.ns.npy"].copy()
    for row in (500, 1000, 1500):
        clock[row:] += 10**8
    keep = np.arange(len(usual["keep.npy"])) % 2 == 0
    with loader.Root(tmp_path / "root") as root:
        with root.write("rig") as writer:
            writer.add("ep", usual | {"state.ns.npy": clock, "keep.npy": keep})
        record = episode_record(open_row(root.open("rig")))
    assert (len(record.language), len(record.keep), len(record.faults)) == (2, 2, 2)
    assert record.errors == {
        "language": "the first 2 of 3 lines of language are shown",
        "keep": "the first 2 of 75 stretches of kept rows are shown",
        "faults": "the first 2 of 3 gaps and frozen spans are shown",
    }


def test_frames_of_equal_bytes_are_frozen(tmp_path):
    usual = rig_fields()
    table = read_packets(usual["cam.left.mp4.packets"])
    same = Timeline.of_table(table).shown[10:15]
    crc32c, size = table.crc32c.copy(), table.size.copy()
    crc32c[same], size[same] = crc32c[same[0]], 1
    frozen = packets_bytes(replace(table, crc32c=crc32c, size=size))
    with loader.Root(tmp_path / "root") as root:
        episode = open_row(write_rig(root, **{"cam.left.mp4.packets": frozen}))
    (span,), _ = fault_spans(episode)
    assert (span.kind, span.text, span.detail) == ("frozen", "5 frames of equal bytes", "cam.left.mp4")
    assert (span.first_ns, span.last_ns) == tuple(episode.time_of("cam.left.mp4", n) for n in (10, 14))


def test_forged_lines_of_language_are_refused_by_number(tmp_path):
    bad = [
        b"[]",
        b"{",
        b'{"start_ns": true}',
        json.dumps({"start_ns": 2**63}).encode(),
        b'{"end_ns": 3}',
        b"\xff",
    ]
    for number, line in enumerate(bad):
        with loader.Root(tmp_path / str(number)) as root:
            with root.write("rig") as writer:
                lines = b'{"start_ns": 0}\n' + line + b"\n"
                clock = np.arange(4, dtype=np.int64)
                writer.add("ep", {"a.npy": np.zeros(4), "a.ns.npy": clock, "language.jsonl": lines})
            version = root.open("rig@1")
            spans, error = language_spans(open_row(version), {})
        assert spans == ()
        assert "line 2" in error, line


def test_stream_damaged_on_the_disk_has_no_values(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root)
        episode = open_row(version)
        at = episode.address.fields["state.npy"]
        path = tmp_path / "root" / at.path
        data = bytearray(path.read_bytes())
        data[at.offset + at.nbytes - 5] ^= 1
        path.write_bytes(data)
        (bad,) = [one for one in moment(open_row(version), 0).tracks if one.field == "state.npy"]
        assert "CRC-32C" in bad.error
        with pytest.raises(Corrupt):
            open_row(version).summary("state.npy")


def test_header_that_declares_a_wide_row_takes_no_memory(tmp_path):
    """A stream without rows may declare any number of values in 128 bytes."""
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (0, 2**40)}
    np.lib.format.write_array_header_1_0(header, shape)
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root, **{"wide.npy": header.getvalue(), "wide.ns.npy": np.zeros(0, np.int64)})
    record = episode_record(open_row(version))
    assert record.n_undrawn == 2**40
    assert {lane.field for lane in record.lanes} == {"state.npy", "action.npy"}


def test_streams_share_the_memory_of_their_clock(tmp_path):
    clock = np.arange(1000, dtype=np.int64) * 10**6
    fields = {f"arm.{number}.npy": np.zeros((1000, 2)) for number in range(5)}
    with loader.Root(tmp_path / "root") as root:
        with root.write("arm") as writer:
            writer.add("ep", {**fields, "arm.ns.npy": clock})
        episode = open_row(root.open("arm@1"))
    assert len(episode.clocks) == 5
    assert len({id(one) for one in episode.clocks.values()}) == 1
    assert episode.nbytes == clock.nbytes + sum(field.nbytes for field in episode.fields.values())


def test_clocks_of_an_episode_have_a_limit_together(tmp_path, monkeypatch):
    clock = np.arange(1000, dtype=np.int64) * 10**6
    names = [f"arm{number}" for number in range(4)]
    fields = {f"{name}.npy": np.zeros((1000, 2)) for name in names}
    with loader.Root(tmp_path / "root") as root, root.write("arm") as writer:
        writer.add("ep", {**fields, **{f"{name}.ns.npy": clock for name in names}})
    monkeypatch.setattr(module, "MAX_CLOCK_BYTES", 3 * 8128)
    episode = open_row(loader.Root(tmp_path / "root").open("arm@1"))
    assert list(episode.errors) == ["arm3.npy"]
    assert "clocks take 32512 bytes; up to 24384" in episode.errors["arm3.npy"]
    assert module.MAX_CLOCK_BYTES < EPISODES_BYTES


def test_frame_of_a_video_that_is_read_whole_counts_its_bytes(tmp_path):
    usual = rig_fields()
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root, **{"bare.mp4": usual["cam.left.mp4"]})
    episode = open_row(version)
    assert episode.frame_bytes("bare.mp4") - episode.frame_bytes("cam.left.mp4") == 2 * len(
        usual["cam.left.mp4"]
    )


def test_log_has_a_clock_per_topic(tmp_path):
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "a.mcap").open("wb") as file:
        out = mcap.writer.Writer(file)
        out.start()
        schema = out.register_schema("T", "jsonschema", b"{}")
        topics = [out.register_channel(topic, "json", schema) for topic in ("/arm/joints", "/gripper")]
        for channel, period_ms in zip(topics, (10, 25), strict=True):
            for n in range(40):
                body = json.dumps({"position": [n, -n / 2], "width": n * 10}).encode()
                out.add_message(channel, 10**15 + n * period_ms * 10**6, body, 0)
        out.finish()
    with loader.Root(tmp_path / "root") as root:
        import_place(root, "mcap", open_store(tmp_path / "logs"), "log", options=ColumnarOptions())
        episode = open_row(root.open("log@1"))
        record, at = episode_record(episode), moment(episode, 260 * 10**6, "gripper.width.npy")
    clocks = {one.field: (one.clock, one.rate) for one in record.streams}
    assert clocks["arm.joints.position.npy"] == ("arm.joints.ns.npy", "100 Hz")
    assert clocks["gripper.width.npy"] == ("gripper.ns.npy", "40 Hz")
    shown = {one.field: (one.number, one.age_ns, one.values) for one in at.tracks}
    assert at.row == 10
    assert shown["arm.joints.position.npy"] == (26, 0, (26.0, -13.0))
    assert shown["gripper.width.npy"] == (10, 10 * 10**6, (100,))


def test_row_blocks_of_a_registered_archive_open_a_long_stream(tmp_path):
    """A registered place has no checksums of fields."""
    n = 40_000
    fields = {"state.npy": encode("state.npy", np.arange(4 * n, dtype=np.float64).reshape(n, 4))}
    fields["state.ns.npy"] = encode("state.ns.npy", np.arange(n) * 10**6)
    (tmp_path / "place").mkdir()
    with tarfile.open(tmp_path / "place" / "a.tar", "w") as archive:
        for name, data in with_row_blocks(fields).items():
            member = tarfile.TarInfo(f"ep.{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with loader.Root(tmp_path / "root") as root:
        register(root, "webdataset", tmp_path / "place", "arm")
        episode = open_row(root.open("arm@1"))
        assert episode.errors == {}
        field = episode.fields["state.npy"]
        assert field.address.crc32c == UNKNOWN_CRC
        assert field.has_rows
        assert read_rows(field, episode.streams["state.npy"].layout, 9, 10).tolist() == [[36, 37, 38, 39]]
