"""Windows of long episodes read the blocks that they need, and no more of an hour than of some minutes."""

import io
import itertools
from bisect import bisect_right
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields, read_parts
from loader.errors import Corrupt, DecodeFailed
from loader.modalities.row_blocks import BLOCK_BYTES, SUFFIX, index_rows, read_rows, with_row_blocks
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.run.part_reads.blocked_rows import BlockCache
from loader.run.part_reads.build_windows import WindowReads
from loader.run.part_reads.episode_clocks import check_times
from loader.run.part_reads.video_packet_reads import Readers
from loader.run.recipe.decode import decoders
from penstock.cli import main
from tests.refusals import refusal
from tests.run.numbered_video import read_numbers, video
from tests.run.range_server import RangeServer

GOPS = {"crf": "30", "g": "30", "bf": "2", "preset": "ultrafast", "sc_threshold": "0"}
AT: dict[str, Any] = {
    "cam.mp4": ["-100ms", 0],
    "state.npy": ["-5ms", 0],
    "action.npy": loader.rows(0, 50),
}
FRAMES = 300
MINUTE_NS = 60 * 10**9


@pytest.fixture(scope="module")
def template() -> bytes:
    return video(FRAMES, GOPS, pts=[n * 1000 // 30 for n in range(FRAMES)])


def repeat_frames(template: bytes, times: int) -> bytes:
    """A video of `times` times the template's frames, one after another, without encoding."""
    out, length = io.BytesIO(), FRAMES * 1000 // 30
    with av.open(io.BytesIO(template)) as source, av.open(out, "w", format="mp4") as target:
        (stream,) = source.streams.video
        base = stream.time_base
        assert base is not None
        length = int(Fraction(FRAMES, 30) / base)
        packets = [
            (bytes(one), one.pts, one.dts, one.is_keyframe) for one in source.demux(stream) if one.size
        ]
        copy: Any = target.add_stream_from_template(stream)
        for number in range(times):
            for body, pts, dts, is_keyframe in packets:
                packet: Any = av.Packet(body)
                packet.pts, packet.dts = pts + number * length, dts + number * length
                packet.is_keyframe, packet.time_base, packet.stream = is_keyframe, base, copy
                target.mux(packet)
    return out.getvalue()


def episode(template: bytes, minutes: int) -> dict[str, Any]:
    """1 kHz numbers on two clocks with jitter, whose values hold their rows, and 30 fps video on its own."""
    n, rng = minutes * 60_000, np.random.default_rng(minutes)
    clock = np.arange(n, dtype=np.int64) * 10**6 + rng.integers(0, 9 * 10**5, n)
    clip = repeat_frames(template, minutes * 60 * 30 // FRAMES)
    fields: dict[str, Any] = {
        "action.npy": np.repeat(np.arange(n, dtype=np.float32)[:, None], 7, 1),
        "action.ns.npy": clock,
        "state.npy": np.arange(n, dtype=np.float64),
        "state.ns.npy": clock + 400_000,
        "cam.mp4": clip,
        "cam.mp4.packets": index_packets(clip),
    }
    return fields


def encode_fields(fields: dict[str, Any]) -> dict[str, bytes]:
    return {name: npy(value) if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_plan(root: loader.Root, *episodes: dict[str, Any]) -> Any:
    with root.write("arm") as writer:
        for number, fields in enumerate(episodes):
            writer.add(f"ep{number}", fields)
    return make_plan(root.open("arm@latest"))


def make_plan(version: Any, at: dict[str, Any] = AT, batch: int = 1) -> loader.Plan:
    windows = loader.windows(version.select(*at), anchor="action.npy", at=at)
    return loader.plan({"arm": windows}, seed=3, global_batch=batch)


def read(plan: loader.Plan, **options: Any) -> loader.Loader:
    return loader.Loader(plan, framework="numpy", workers=0, **options)


def cost_of_windows(root: Path, n: int) -> list[tuple[int, int]]:
    """(bytes, requests) of windows of a bucket, each read by a loader of its own."""
    objects = {f"r/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}
    server, costs = RangeServer(objects), []
    try:
        with loader.Root("s3://bucket/r", options=server.options) as bucket:
            plan = make_plan(bucket.open("arm@1"))
            for step in range(n):
                sizes: list[int] = []
                with read(plan, prefetch=0) as batches:
                    server.before = lambda key, nbytes, sizes=sizes: (
                        sizes.append(nbytes) if key.endswith(".tar") else None
                    )
                    batch = batches.batch_at(step)
                    assert batch["action.npy"][0, 0, 0] == batch["row"][0]
                server.before = lambda key, nbytes: None
                costs.append((sum(sizes), len(sizes)))
    finally:
        server.close()
    return costs


def test_windows_of_an_hour_cost_no_more_than_of_minutes(template: bytes, tmp_path: Path) -> None:
    most = {}
    for minutes in (6, 60):
        with loader.Root(str(tmp_path / str(minutes))) as root:
            plan = write_plan(root, with_row_blocks(encode_fields(episode(template, minutes))))
            assert len(plan.sources["arm"].view) == minutes * 60_000
        costs = cost_of_windows(tmp_path / str(minutes), 4)
        most[minutes] = max(nbytes for nbytes, _ in costs), max(n for _, n in costs)
    assert most[60][0] < 2**20
    assert most[60][1] <= most[6][1] + 2, most
    assert most[60][0] < most[6][0] + 2**17, most


def test_windows_by_blocks_are_windows_of_whole_arrays(template: bytes, tmp_path: Path) -> None:
    fields = encode_fields(episode(template, 6))
    clocks = {name: np.load(io.BytesIO(fields[f"{name}.ns.npy"])) for name in ("action", "state")}
    table = read_packets(fields["cam.mp4.packets"])
    shown = sorted(int(pts * table.facts.time_base * 10**9) for pts in table.pts.tolist())
    n = len(clocks["action"])
    with loader.Root(str(tmp_path / "blocks")) as in_blocks, loader.Root(str(tmp_path / "whole")) as in_whole:
        at = {**AT, "state.npy": ["-5ms", 0, "3s"]}
        plans = [
            make_plan(write_plan(root, values).sources["arm"].view.episodes.version, at, 4)
            for root, values in ((in_blocks, with_row_blocks(fields)), (in_whole, fields))
        ]
        with read(plans[0]) as blocks, read(plans[1]) as whole:
            for step in range(12):
                batch, same = blocks.batch_at(step), whole.batch_at(step)
                for name, value in batch.fields.items():
                    assert np.array_equal(value, same[name]), name
                for slot, row in enumerate(batch["row"].tolist()):
                    now = int(clocks["action"][row])
                    assert batch["action.npy"][slot, :, 0].tolist() == [
                        min(row + k, n - 1) for k in range(50)
                    ]
                    assert batch["anchor_ns"][slot] == now
                    for k, offset in enumerate((-5 * 10**6, 0, 3 * 10**9)):
                        place = max(0, int(np.searchsorted(clocks["state"], now + offset, side="right")) - 1)
                        assert batch["state.npy"][slot, k] == place
                        assert batch["state.npy.age_ns"][slot, k] == now + offset - clocks["state"][place]
                    frames = [max(0, bisect_right(shown, now + offset) - 1) for offset in (-(10**8), 0)]
                    assert read_numbers(batch["cam.mp4"][slot]) == [frame % FRAMES for frame in frames]


@pytest.mark.parametrize("rule", ["last", "nearest", "linear"])
def test_ends_of_blocks_and_of_the_episode_are_exact(tmp_path: Path, rule: str) -> None:
    """Rows at the ends of blocks, where a clock's neighbour is in another block."""
    n = 200_000
    clock = np.cumsum(np.random.default_rng(5).integers(1, 9, n)).astype(np.int64)
    fields = {
        "action.npy": np.arange(n),
        "action.ns.npy": clock,
        "state.npy": np.arange(n) / 8,
        "state.ns.npy": clock + 2,
    }
    step = read_rows(index_rows(npy(clock))).block_rows
    at: dict[str, Any] = {"state.npy": [-9, -3, -2, 0, 1, 2, 5], "action.npy": loader.rows(-2, 3)}
    with loader.Root(str(tmp_path / "blocks")) as in_blocks, loader.Root(str(tmp_path / "whole")) as in_whole:
        reads = []
        for root, values in (
            (in_blocks, with_row_blocks(encode_fields(fields))),
            (in_whole, encode_fields(fields)),
        ):
            with root.write("arm") as writer:
                writer.add("ep0", values)
            version = root.open("arm@1")
            assert (f"state.npy{SUFFIX}" in version.fields) == (root is in_blocks)
            assert not [name for name in version.select().fields if name.endswith(SUFFIX)]
            windows = loader.windows(
                version.select(*at), anchor="action.npy", at=at, rule={"state.npy": rule}
            )
            reads.append(windows)
        rows = {0, 1, 2, n - 3, n - 2, n - 1}
        rows |= {k * step + d for k in range(1, n // step + 1) for d in range(-3, 4) if k * step + d < n}
        seen = [read_windows(windows, sorted(rows)) for windows in reads]
    for name in seen[0]:
        assert np.array_equal(seen[0][name], seen[1][name]), name


def read_windows(windows: Any, rows: list[int]) -> dict[str, np.ndarray]:
    """The windows at these rows, read as a batch."""
    fetch = WindowReads(windows, decoders(windows.episodes.fields, True))
    store = windows.episodes.version.shard_store
    readers = Readers(fields=partial(record_fields, store), parts=partial(record_parts, store))
    addresses = windows.episodes.version.address(np.zeros(len(rows), np.int64), windows.episodes.fields)
    samples, _ = fetch(np.array(rows), addresses, lambda number, field: np.random.default_rng(0), readers)
    return {name: np.stack([np.asarray(sample[name].value) for sample in samples]) for name in samples[0]}


def record_fields(store: Any, addresses: Any, on_corrupt: Any) -> Any:
    return read_fields(store, addresses, on_corrupt=on_corrupt)


def record_parts(store: Any, parts: Any, on_corrupt: Any) -> Any:
    return read_parts(store, parts, on_corrupt=on_corrupt)


def test_wrong_bytes_are_named_by_field_block_and_row(template: bytes, tmp_path: Path) -> None:
    fields = encode_fields(episode(template, 6))
    with loader.Root(str(tmp_path)) as root:
        plan = write_plan(root, with_row_blocks(fields))
        windows, version = plan.sources["arm"].view, root.open("arm@1")
        row = 123_456
        (address,) = version.address(np.array([0]), ["action.npy"])
        place = address.fields["action.npy"]
        offset = place.offset + place.nbytes - 28 * (360_000 - row)
        path = tmp_path / place.path
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.chmod(0o644)
        path.write_bytes(bytes(data))
        block = row // 2340
        step = next(
            step for step in itertools.count() if 0 < row - int(plan.batch_ids(step)[0][1].split("@")[1]) < 50
        )
        with (
            read(plan, on_corrupt="raise") as batches,
            refusal(Corrupt, what="action.npy", within="sample 'ep0'") as damaged,
        ):
            batches.batch_at(step)
        assert f"block {block} (rows {block * 2340} to " in str(damaged.value.accepted)
        with read(plan) as batches:  # another window stands in
            batches.batch_at(step)
        assert len(windows) == 360_000


def test_row_blocks_of_another_array_are_refused(tmp_path: Path) -> None:
    clock = np.arange(200_000, dtype=np.int64)
    fields = {"action.npy": npy(clock), f"action.npy{SUFFIX}": index_rows(npy(clock + 1))}
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", fields)
        plan = make_plan(root.open("arm@1"), {"action.npy": loader.rows(0, 2)})
        with (
            read(plan, on_corrupt="raise") as batches,
            refusal(DecodeFailed, what="action.npy.rows", within="'ep0' field 'action.npy.rows'"),
        ):
            batches.batch_at(0)


@pytest.mark.parametrize(
    ("fault", "where"), [("equal", "row 10000"), ("back", "row 10000"), ("between blocks", "row 8192")]
)
def test_large_clock_that_goes_back_is_named(tmp_path: Path, fault: str, where: str) -> None:
    clock = np.arange(200_000, dtype=np.int64)
    row = 8192 if fault == "between blocks" else 10_000
    clock[row] = clock[row - 1] - (fault != "equal")
    fields = with_row_blocks(
        {"action.npy": npy(np.zeros((200_000, 2), np.float32)), "action.ns.npy": npy(clock)}
    )
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", fields)
        plan = make_plan(root.open("arm@1"), {"action.npy": loader.rows(0, 2)})
        first = 0 if fault == "between blocks" else 8192
        near = (
            step
            for step in itertools.count()
            if first <= int(plan.batch_ids(step)[0][1].split("@")[1]) < first + 8192
        )
        with (
            read(plan, on_corrupt="raise") as batches,
            refusal(DecodeFailed, what=where, within="'ep0' field 'action.ns.npy'"),
        ):
            batches.batch_at(next(near))


def test_frames_of_a_raw_topic_are_read_one_by_one(tmp_path: Path) -> None:
    pictures = np.random.default_rng(1).integers(0, 256, (40, 120, 160, 3), np.uint8)
    fields = {"action.npy": npy(np.arange(40)), "cam.npy": npy(pictures)}
    rows = read_rows(with_row_blocks(fields)[f"cam.npy{SUFFIX}"])
    assert rows.block_rows == 1
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", with_row_blocks(fields))
        plan = make_plan(root.open("arm@1"), {"cam.npy": loader.rows(0, 1), "action.npy": loader.rows(0, 1)})
        with read(plan) as batches:
            before = batches.metrics()["fetched_bytes_total"]
            batch = batches.batch_at(0)
            cost = batches.metrics()["fetched_bytes_total"] - before
    assert (batch["cam.npy"][0, 0] == pictures[batch["row"][0]]).all()
    assert cost < 2 * pictures[0].nbytes


@pytest.mark.parametrize("array", [np.zeros(()), np.zeros((0, 3)), np.asfortranarray(np.zeros((9, 4)))])
def test_arrays_without_rows_have_no_blocks(array: np.ndarray) -> None:
    assert index_rows(npy(array)) == b""


def test_arrays_of_arrays_have_no_blocks() -> None:
    """numpy adds the dimensions of such a dtype to the shape in the header."""

    def with_pairs(data: bytes) -> bytes:
        return data.replace(b"'<i8', ", b"('<i4',(2,)), ").replace(b" " * 7 + b"\n", b"\n", 1)

    data, pairs = npy(np.arange(20_000)), with_pairs(npy(np.arange(20_000)))
    decoder: Any = loader.modalities.find_decoder("x.npy")
    assert decoder(pairs, None).shape == (20_000, 2)
    assert index_rows(pairs) == b""
    with refusal(DecodeFailed, what="row blocks", given=["('<i4', (2,))", 20000]):
        read_rows(with_pairs(index_rows(data)))


def test_rows_are_not_counted_by_row_blocks_of_another_array(tmp_path: Path) -> None:
    rows = index_rows(npy(np.arange(200_000, dtype=np.int64)))
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", {"action.npy": np.zeros(400_000, np.float32), f"action.npy{SUFFIX}": rows})
        plan = make_plan(root.open("arm@1"), {"action.npy": loader.rows(0, 2)})
    assert len(plan.sources["arm"].view) == 400_000


@given(data=st.data())
def test_header_and_blocks_have_the_checksum_of_the_array(data: Any) -> None:
    width = data.draw(st.sampled_from([1, 7, 8, 1000, BLOCK_BYTES, BLOCK_BYTES + 1]))
    array = np.random.default_rng(width).integers(0, 256, (data.draw(st.integers(1, 40)), width), np.uint8)
    stored = index_rows(npy(array))
    assert read_rows(stored).crc32c == crc32c(npy(array))
    forged = bytearray(stored)
    place = data.draw(st.integers(stored.index(b"|u1"), len(stored) - 1))
    forged[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeFailed):
        read_rows(bytes(forged))


def test_row_blocks_with_another_dtype_are_refused() -> None:
    stored = index_rows(npy(np.arange(400_000, dtype=np.float32)))
    with refusal(DecodeFailed, what="checksum of the row blocks"):
        read_rows(stored.replace(b"<f4", b"<i4"))


def test_times_of_blocks_ascend_without_a_wrap() -> None:
    times = np.array([0, 2**63 - 1, -(2**63), -1, 5, 6])
    with refusal(DecodeFailed, what="block 2", accepted="ascending times"):
        check_times(times)


@pytest.mark.parametrize("n", [1, 8191, 8192, 8193, 20_000])
def test_row_blocks_cover_an_array(n: int) -> None:
    array = np.arange(n, dtype=np.int64)
    data = npy(array)
    blocks = read_rows(index_rows(data))
    assert len(blocks) == n
    parts = [blocks.part(block) for block in range(len(blocks.crcs))]
    assert [nbytes for _, nbytes, _ in parts] == [
        min(BLOCK_BYTES, 8 * n - at) for at in range(0, 8 * n, BLOCK_BYTES)
    ]
    read = [blocks.array(number, data[at : at + nbytes]) for number, (at, nbytes, _) in enumerate(parts)]
    assert np.array_equal(np.concatenate(read), array)


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: b"x" + d[1:], lambda d: d[:60], lambda d: d + b"0000"]
)
def test_damaged_row_blocks_are_refused(damage: Any) -> None:
    with pytest.raises(DecodeFailed):
        read_rows(damage(index_rows(npy(np.arange(20_000)))))


def test_add_group_adds_row_blocks_to_an_earlier_version(tmp_path: Path) -> None:
    large, small = np.arange(400_000, dtype=np.float32), np.arange(30, dtype=np.float32)
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", {"action.npy": large})
            writer.add("ep1", {"action.npy": small})
        compute = {f"action.npy{SUFFIX}": lambda sample: index_rows(sample.bytes_of("action.npy"))}
        version = root.add_group("arm@1", "row_index", compute, inputs=["action.npy"])
        plan = make_plan(version, {"action.npy": loader.rows(0, 2)}, 16)
        with read(plan, prefetch=0) as batches:
            batch = batches.batch_at(0)
            assert batches.metrics()["fetched_bytes_total"] < 20 * BLOCK_BYTES
    assert batch["action.npy"][:, 0].tolist() == batch["row"].tolist()


def test_importers_write_row_blocks_of_large_arrays(tmp_path: Path) -> None:
    actions = np.random.default_rng(1).random((20_000, 9))
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "in" / "ph.hdf5", "w") as file:
        for name, rows in (("demo_0", 20_000), ("demo_1", 50)):
            demo = file.create_group(f"data/{name}")
            demo.attrs["num_samples"] = rows
            demo["actions"], demo["dones"] = actions[:rows], np.zeros(rows)
    root = str(tmp_path / "root")
    assert main(["import", "robomimic", str(tmp_path / "in"), "lift", "--root", root]) == 0
    with loader.Root(root) as opened:
        version = opened.open("lift@1")
        assert [name for name in version.fields if name.endswith(SUFFIX)] == [f"actions.npy{SUFFIX}"]
        windows = loader.windows(
            version, anchor="actions.npy", at={"actions.npy": loader.rows(0, 1), "dones.npy": [0]}
        )
        with read(loader.plan({"lift": windows}, seed=1, global_batch=50)) as batches:
            batch = batches.batch_at(0)
    assert (batch["actions.npy"][:, 0] == actions[batch["row"]]).all()
    without = str(tmp_path / "without")
    arguments = [
        "import",
        "robomimic",
        str(tmp_path / "in"),
        "lift",
        "--root",
        without,
        "--without",
        "actions.npy",
    ]
    assert main(arguments) == 0
    with loader.Root(without) as opened:
        assert not [name for name in opened.open("lift@1").fields if name.startswith("actions")]


def test_blocks_beyond_the_limit_stay_until_the_end_of_their_batch() -> None:
    cache = BlockCache(10)
    first, second = (0, "a.npy", 0), (0, "a.npy", 1)
    with cache.batch():
        cache.put(first, "first", 6)
        cache.put(second, "second", 6)
        assert (cache.get(first), cache.get(second)) == ("first", "second")
    with cache.batch():
        assert (cache.get(first), cache.get(second)) == (None, "second")
