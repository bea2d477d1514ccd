"""Video fields read by their packets: the same batches as from whole fields, for a fraction of the bytes."""

import io
import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

import loader
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, DecodeFailed, InvalidRuntime
from loader.modalities.video.packet_table import index_packets, packets_bytes, read_packets
from loader.modalities.video.request import VideoDecoder
from loader.modalities.video.timeline import Timeline
from tests.refusals import refusal
from tests.run.numbered_video import GOP12, LONG, read_numbers, video


def packet_table(key, data):
    """The packet table; of "lying", one whose second mark is on the frame after the keyframe."""
    table = read_packets(index_packets(data))
    if key.startswith("lying"):
        keys = np.flatnonzero(table.key)
        table = replace(table, key=np.isin(np.arange(len(table)), [keys[0], keys[1] + 1, *keys[2:]]))
    return packets_bytes(table)


def kinds():
    rng = np.random.default_rng(3)
    uneven = (np.cumsum(rng.integers(5, 90, 70)) - 5).tolist()
    yield from ((f"gop12/{i}", video(48 + 7 * i, first=i)) for i in range(4))
    yield from ((f"long/{i}", video(60 + i, LONG, first=100 * i)) for i in range(3))
    yield "vfr/0", video(70, LONG, pts=uneven)
    yield "audio/0", video(60, audio=True)
    yield "lying/0", video(60)


N = 10


@pytest.fixture(scope="module")
def clips():
    """key -> mp4: short and long GOPs, B-frames, VFR, audio between, marks of keyframes that lie."""
    return dict(kinds())


@pytest.fixture(scope="module")
def version(clips):
    with loader.Root("memory://run-video-reads") as root:
        with root.write("clips", groups={"mp4.packets": "media_index"}, part_samples=4) as writer:
            for key, data in clips.items():
                writer.add(key, {"mp4": data, "mp4.packets": packet_table(key, data), "cls": len(key)})
        yield writer.version


def whole(decoder):
    """The same decoder, as a callable that the loader knows nothing of: it gets all of the field."""
    return lambda data, rng: decoder(data, rng)


DECODERS = [
    loader.video(),
    loader.video(4, 3, size=(32, 40)),
    loader.video(5, 11, start=2),
    loader.video(3, 20, size=(32, 32), crop="random"),
    loader.video(at=[1, Fraction(1, 2), 1.5, 0.25]),
    loader.video(6, at=0.1, crop=(2, 8, 40, 60), size=(20, 30)),
]


@pytest.mark.parametrize("number", range(len(DECODERS)))
def test_batches_are_those_of_whole_fields(version, number):
    decoder = DECODERS[number]
    plan = loader.plan({"v": version.select("mp4", "cls")}, seed=5, global_batch=N // 2)
    with (
        loader.Loader(plan, 0, 1, decode={"mp4": whole(decoder)}, workers=0, steps=4) as plain,
        loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=2, steps=4) as bare,
        loader.Loader(plan, 1, 2, decode={"mp4": decoder}, workers=0, steps=4) as half,
    ):
        for a, b, c in zip(plain, bare, half, strict=True):
            assert a.digest == b.digest
            assert a.ids == b.ids
            assert list(a) == list(b) == ["mp4", "cls"]
            for x, y in zip(a["mp4"], b["mp4"], strict=True):
                assert np.array_equal(x, y)
            assert all(np.array_equal(x, y) for x, y in zip(a["mp4"][-len(c) :], c["mp4"], strict=True))


def test_frames_are_the_requested_ones(version):
    """By the numbers burnt into them, drawn places covering the videos."""
    plan = loader.plan({"v": version.where("key LIKE 'gop12/%'").select("mp4")}, seed=1, global_batch=4)
    seen = Counter()
    with loader.Loader(plan, 0, 1, decode={"mp4": loader.video(4, 3)}, workers=0, epochs=20) as batches:
        for batch in batches:
            for (_, key), clip in zip(batch.ids, batch["mp4"], strict=True):
                i, numbers = int(key[-1]), read_numbers(clip)
                assert numbers == list(range(numbers[0], numbers[0] + 12, 3))
                assert i <= numbers[0] <= i + 48 + 7 * i - 10
                seen[key, numbers[0]] += 1
    assert len(seen) > 50


def test_packets_that_do_not_do_are_followed_by_the_whole_field(version, clips):
    """The table of this video has a mark of a keyframe on a frame that is none."""
    plan = loader.plan({"v": version.where("key = 'lying/0'").select("mp4")}, seed=1, global_batch=1)
    keys = np.flatnonzero(read_packets(packet_table("lying/0", clips["lying/0"])).key).tolist()
    for start, falls_back in ((keys[1] + 1, True), (keys[2], False)):
        decoder = loader.video(2, start=start)
        with loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=0) as batches:
            assert read_numbers(batches.batch_at(0)["mp4"][0]) == [start, start + 1]
            fetched = batches.metrics()["fetched_bytes_total"]
        assert (fetched > len(clips["lying/0"])) == falls_back


def test_packets_are_no_field_of_the_batch_unless_selected(version, clips):
    both = loader.plan({"v": version.select("mp4.packets", "mp4")}, seed=1, global_batch=N)
    with loader.Loader(both, 0, 1, workers=0, steps=1) as batches:
        batch = next(batches)
    assert list(batch) == ["mp4.packets", "mp4"]
    for (_, key), table in zip(batch.ids, batch["mp4.packets"], strict=True):
        assert table == packet_table(key, clips[key])


def test_bytes_on_request(version, clips):
    plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=N)
    with loader.Loader(plan, 0, 1, decode=False, workers=0, steps=1) as batches:
        batch = next(batches)
    assert [clips[key] for _, key in batch.ids] == batch["mp4"]


def write_version(root, name, fields_of, keys, **how):
    with root.write(name, groups={"mp4.packets": "media_index"}, **how) as writer:
        for key in keys:
            writer.add(key, fields_of(key))
    return writer.version


def with_table(data):
    return {"mp4": data, "mp4.packets": index_packets(data)}


def store_spans(store, path_part):
    return [span for path, spans in store.spans if path_part in path for span in spans]


@pytest.fixture
def listening(watch_store):
    """watch_store(root), which also notes the ranges that are asked for."""

    def listen(root):
        store = watch_store(root)
        store.spans = []
        inner = store.inner

        class Listening(type(store)):
            def get_ranges(self, key, spans, **limits):
                self.spans.append((key, list(spans)))
                return super().get_ranges(key, spans, **limits)

        store.__class__ = Listening
        assert store.inner is inner
        return store

    return listen


def test_what_is_read_does_not_grow_with_the_video(listening):
    """One run of packets, its bytes about the same for a video of 10 times the length; the table grows by 33 bytes
    per frame."""
    seen = {}
    for n_frames in (90, 900):
        with loader.Root(f"memory://run-video-length-{n_frames}") as root:
            write_version(root, "long", lambda _, n=n_frames: with_table(video(n)), ["one"])
            store = listening(root)
            version = root.open("long@1")
            plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
            address = loader.explain(plan, 0)[0].address.fields["mp4"]
            store.spans.clear()
            with loader.Loader(plan, 0, 1, decode={"mp4": loader.video(8, start=50)}, workers=0) as batches:
                batch = batches.batch_at(0)
                assert read_numbers(batch["mp4"][0]) == list(range(50, 58))
                fetched = batches.metrics()["fetched_bytes_total"]
            (span,) = store_spans(store, "/media-")
            (table,) = store_spans(store, "/media_index-")
            assert address.offset < span.offset < address.offset + address.nbytes - span.nbytes
            assert fetched == span.nbytes + table.nbytes
            seen[n_frames] = (span.nbytes, table.nbytes, address.nbytes)
    (short, short_table, _), (long, long_table, all_of_it) = seen[90], seen[900]
    assert abs(long - short) < 0.1 * short
    assert long < all_of_it / 20
    assert (long_table - short_table) / 810 < 34


def test_one_range_per_run_of_packets(listening):
    data = video(900, {**GOP12, "crf": "1"})
    with loader.Root("memory://run-video-runs") as root:
        write_version(root, "far", lambda _: with_table(data), ["one"])
        store = listening(root)
        version = root.open("far@1")
        plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
        table = read_packets(index_packets(data))
        offset = loader.explain(plan, 0)[0].address.fields["mp4"].offset
        for frames, wanted in (
            ([30, 31, 33], [(24, 34)]),
            ([2, 300, 301, 800], [(0, 3), (300, 302), (792, 801)]),
        ):
            store.spans.clear()
            decoder = loader.video(at=[Fraction(40 * n, 1000) for n in frames])
            with loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=0) as batches:
                assert read_numbers(batches.batch_at(0)["mp4"][0]) == frames
            assert store_spans(store, "/media-") == [
                (offset + table.pos[a], table.pos[b - 1] + table.size[b - 1] - table.pos[a])
                for a, b in wanted
            ]


def flip_byte(root, path, place):
    full = os.path.join(root.url, path)
    status = os.stat(full)
    with open(full, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x20]))
    os.utime(full, ns=(status.st_atime_ns, status.st_mtime_ns))


class TestDamage:
    @pytest.fixture
    def local(self, tmp_path):
        data = video(120)
        root = loader.Root(str(tmp_path / "root"))
        version = write_version(root, "one", lambda _: with_table(data), ["clip"])
        plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
        address = loader.explain(plan, 0)[0].address
        return root, plan, address, read_packets(index_packets(data))

    def read(self, plan, start=40):
        with loader.Loader(plan, 0, 1, decode={"mp4": loader.video(4, start=start)}, workers=0) as batches:
            return read_numbers(batches.batch_at(0)["mp4"][0]), batches.metrics()["refetched_total"]

    def test_in_a_packet_that_is_needed(self, local):
        root, plan, address, table = local
        place = address.fields["mp4"]
        flip_byte(root, place.path, place.offset + int(table.pos[38]) + 3)
        with pytest.raises(Corrupt) as caught:
            self.read(plan)
        at = place.offset + int(table.pos[38])
        for text in (
            address.describe("mp4"),
            "in its packet table",
            f"[{at}:{at + table.size[38]}], after reading it twice",
            "penstock verify one@1",
        ):
            assert text in str(caught.value)

    def test_in_a_packet_that_is_not(self, local):
        root, plan, address, table = local
        place = address.fields["mp4"]
        flip_byte(root, place.path, place.offset + int(table.pos[90]) + 3)
        assert self.read(plan) == ([40, 41, 42, 43], 0)

    def test_in_the_table(self, local):
        root, plan, _, _ = local
        version = plan.sources["v"].view.version
        place = version.address(np.array([0]), ["mp4.packets"])[0].fields["mp4.packets"]
        flip_byte(root, place.path, place.offset + place.nbytes - 200)
        with refusal(Corrupt, what="mp4.packets", within="field 'mp4.packets'") as damaged:
            self.read(plan)
        assert "in its index" in str(damaged.value.accepted)

    def test_shard_cut_short(self, local):
        root, plan, address, table = local
        place = address.fields["mp4"]
        end = place.offset + int(table.pos[41]) + 5
        os.truncate(os.path.join(root.url, place.path), end)
        with refusal(Corrupt, what="mp4", given=end, within="field 'mp4'"):
            self.read(plan)


def test_flip_on_the_way_is_cured_by_reading_the_packet_again(memory_root, watch_store):
    data = video(120)
    write_version(memory_root, "one", lambda _: with_table(data), ["clip"])
    store = watch_store(memory_root)
    plan = loader.plan({"v": memory_root.open("one@1").select("mp4")}, seed=1, global_batch=1)
    place = loader.explain(plan, 0)[0].address.fields["mp4"]
    again = []

    def once(key, offset, sent):
        if key != place.path:
            return sent
        again.append((offset, len(sent)))
        return sent if len(again) > 1 else sent[:-1] + bytes([sent[-1] ^ 1])

    store.change = once
    with loader.Loader(plan, 0, 1, decode={"mp4": loader.video(4, start=40)}, workers=0) as batches:
        assert read_numbers(batches.batch_at(0)["mp4"][0]) == [40, 41, 42, 43]
        assert batches.metrics()["refetched_total"] == 1
    table = read_packets(index_packets(data))
    assert again[1:] == [(place.offset + table.pos[43], table.size[43])]


def test_table_of_another_video_is_refused(memory_root):
    other = video(50)
    table = index_packets(other)
    version = write_version(memory_root, "odd", lambda _: {"mp4": video(60), "mp4.packets": table}, ["clip"])
    plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
    with (
        loader.Loader(plan, 0, 1, workers=0) as batches,
        refusal(
            DecodeFailed, what="mp4.packets", given=f"packets of {len(other)} bytes, {crc32c(other):08x}"
        ),
    ):
        next(batches)


def test_bytes_that_are_no_table_are_refused(memory_root):
    version = write_version(
        memory_root, "odd", lambda _: {"mp4": video(60), "mp4.packets": b"nothing"}, ["clip"]
    )
    plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
    with (
        loader.Loader(plan, 0, 1, workers=0) as batches,
        refusal(DecodeFailed, what="packet table", within="field 'mp4.packets'"),
    ):
        next(batches)


@pytest.mark.parametrize("way", ["table", "whole"])
def test_too_few_frames_are_refused_alike(memory_root, way):
    version = write_version(memory_root, "few", lambda _: with_table(video(9)), ["clip"])
    plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
    decoder = loader.video(5, 2, start=1) if way == "table" else whole(loader.video(5, 2, start=1))
    with (
        loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=0) as batches,
        refusal(DecodeFailed, what="frames", given=9, accepted=10, within="sample 'clip' field 'mp4'"),
    ):
        next(batches)


def test_parts_without_tables_are_read_whole(memory_root, clips):
    """Tables added to a version later, and parts that came after."""
    with memory_root.write("grown") as writer:
        for key in ("gop12/0", "gop12/1"):
            writer.add(key, {"mp4": clips[key]})
    compute = {"mp4.packets": lambda sample: index_packets(sample.bytes_of("mp4"))}
    memory_root.add_group("grown@1", "media_index", compute)
    with memory_root.write("grown") as writer:
        for key in ("gop12/2", "gop12/3"):
            writer.add(key, {"mp4": clips[key]})
    plan = loader.plan({"v": memory_root.open("grown@3").select("mp4")}, seed=1, global_batch=4)
    decoder = loader.video(4, start=30)
    with (
        loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=0, steps=1) as bare,
        loader.Loader(plan, 0, 1, decode={"mp4": whole(decoder)}, workers=0, steps=1) as plain,
    ):
        a, b = next(bare), next(plain)
        assert np.array_equal(a["mp4"], b["mp4"])
        assert a.digest == b.digest
        later = sum(len(clips[f"gop12/{i}"]) for i in (2, 3))
        assert later < bare.metrics()["fetched_bytes_total"] < plain.metrics()["fetched_bytes_total"]


def test_table_that_says_whole_is_obeyed(memory_root):
    """Matroska blocks lie elsewhere than their payload: the table says so, and the field is read whole."""
    file = io.BytesIO()
    with av.open(io.BytesIO(video(60))) as source, av.open(file, "w", format="matroska") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    data = file.getvalue()
    assert read_packets(index_packets(data)).facts.whole_because
    version = write_version(memory_root, "whole", lambda _: with_table(data), ["clip"])
    plan = loader.plan({"v": version.select("mp4")}, seed=1, global_batch=1)
    with loader.Loader(plan, 0, 1, decode={"mp4": loader.video(4, start=30)}, workers=0) as batches:
        assert read_numbers(next(batches)["mp4"][0]) == [30, 31, 32, 33]
        assert batches.metrics()["fetched_bytes_total"] == len(data) + len(index_packets(data))


class TestCameras:
    """Several videos of one sample, at the same instants."""

    HIGH, WRIST = "cam_high.mp4", "cam_wrist.mp4"
    HIGH_PTS = tuple(1000 + 40 * n for n in range(100))  # 25 frames a second from 1 s to 5 s
    WRIST_PTS = tuple(1500 + 100 * n for n in range(30))  # 10 a second from 1.5 s to 4.5 s

    def fields(self, tables):
        high, wrist = video(100, pts=self.HIGH_PTS), video(30, LONG, pts=self.WRIST_PTS)
        made = {self.HIGH: high, self.WRIST: wrist}
        tables = {f"{name}.packets": index_packets(made[name]) for name in tables}
        return {**made, **tables}

    def version(self, root, tables):
        groups = {f"{name}.packets": "media_index" for name in tables}
        with root.write("episodes", groups=groups) as writer:
            for i in range(4):
                writer.add(f"{i}", self.fields(tables))
        return writer.version

    @pytest.mark.parametrize("tables", [(HIGH, WRIST), (HIGH,), ()])
    def test_one_drawn_place_for_all(self, memory_root, tables):
        version = self.version(memory_root, tables)
        plan = loader.plan({"v": version.select(self.WRIST, self.HIGH)}, seed=2, global_batch=4)
        decode = {self.HIGH: loader.video(8, 5), self.WRIST: loader.video(at=self.HIGH, size=None)}
        seen = set()
        with loader.Loader(plan, 0, 1, decode=decode, workers=0, steps=25) as batches:
            for batch in batches:
                assert list(batch) == [self.WRIST, self.HIGH]
                for high, wrist in zip(batch[self.HIGH], batch[self.WRIST], strict=True):
                    shown = read_numbers(high)
                    times = [self.HIGH_PTS[n] for n in shown]
                    assert times == list(range(times[0], times[0] + 8 * 200, 200))
                    assert times[0] >= 1500
                    assert times[-1] < 4500
                    assert read_numbers(wrist) == [(time - 1500) // 100 for time in times]
                    seen.add(shown[0])
        # 13 is the first frame with the wrist on, 87 the last at which it is; the clip spans 35 more
        assert min(seen) == 13
        assert max(seen) == 87 - 35
        assert len(seen) > 30  # of 40

    def test_same_whichever_way_they_are_read(self, tmp_path):
        """By packets, whole, and mixed: the same pictures."""
        got = []
        for number, tables in enumerate([(self.HIGH, self.WRIST), (self.HIGH,), ()]):
            root = loader.Root(str(tmp_path / str(number)))
            plan = loader.plan({"v": self.version(root, tables)}, seed=9, global_batch=4)
            plan = loader.plan(
                {"v": plan.sources["v"].view.select(self.HIGH, self.WRIST)}, seed=9, global_batch=4
            )
            decode = {self.HIGH: loader.video(4, 3), self.WRIST: loader.video(at=self.HIGH)}
            with loader.Loader(plan, 0, 1, decode=decode, workers=0, framework="numpy") as batches:
                batch = next(batches)
            got.append((batch[self.HIGH], batch[self.WRIST]))
        for high, wrist in got[1:]:
            assert np.array_equal(high, got[0][0])
            assert np.array_equal(wrist, got[0][1])

    @pytest.mark.parametrize("tables", [(HIGH, WRIST), ()])
    def test_when_the_frames_are_shown(self, memory_root, tables):
        """What a transform needs to take the actions of the same instants."""
        version = self.version(memory_root, tables)
        plan = loader.plan({"v": version.select(self.HIGH, self.WRIST)}, seed=2, global_batch=4)
        decode = {
            self.HIGH: loader.video(4, 3, times=True),
            self.WRIST: loader.video(at=self.HIGH, times=True),
        }

        def transform(sample, rng):
            return {**sample, "first_s": sample[f"{self.HIGH}.times"][0]}

        with loader.Loader(plan, 0, 1, decode=decode, transform=transform, workers=0) as batches:
            batch = next(batches)
        wrist_s, high_s = batch[f"{self.WRIST}.times"].numpy(), batch[f"{self.HIGH}.times"].numpy()
        assert list(batch) == [self.HIGH, f"{self.HIGH}.times", self.WRIST, f"{self.WRIST}.times", "first_s"]
        assert (high_s.dtype, high_s.shape) == (np.float64, (4, 4))
        assert batch["first_s"].tolist() == high_s[:, 0].tolist()
        for i in range(4):
            assert high_s[i].tolist() == [self.HIGH_PTS[n] / 1000 for n in read_numbers(batch[self.HIGH][i])]
            assert wrist_s[i].tolist() == [
                self.WRIST_PTS[n] / 1000 for n in read_numbers(batch[self.WRIST][i])
            ]
        assert (wrist_s <= high_s).all()

    def test_times_have_a_name_of_their_own(self, memory_root):
        with memory_root.write("odd") as writer:
            writer.add("one", {"mp4": video(30), "mp4.times": b"mine"})
        plan = loader.plan({"v": writer.version.select()}, seed=2, global_batch=1)
        with refusal(InvalidRuntime, what="decode['mp4']", where="odd@1", given="mp4.times"):
            loader.Loader(plan, 0, 1, decode={"mp4": loader.video(times=True)}, workers=0)

    def test_times_need_a_frame_of_every_camera(self, memory_root):
        version = self.version(memory_root, (self.HIGH, self.WRIST))
        plan = loader.plan({"v": version.select(self.HIGH, self.WRIST)}, seed=2, global_batch=4)
        shown = "from 1.500000 to 4.500000 s"
        for leader, fields in (
            (loader.video(4, start=5), {"what": "time", "given": Fraction(6, 5), "accepted": shown}),
            (loader.video(80), {"what": "frames", "given": 75, "accepted": 80}),
        ):
            decode = {self.HIGH: leader, self.WRIST: loader.video(at=self.HIGH)}
            with (
                loader.Loader(plan, 0, 1, decode=decode, workers=0) as batches,
                refusal(DecodeFailed, **fields, within="field 'cam_high.mp4'"),
            ):
                next(batches)

    def test_who_may_lead(self, memory_root):
        version = self.version(memory_root, ())
        both = version.select(self.HIGH, self.WRIST)
        follows = loader.video(at=self.HIGH)
        other = "a field that follows no other"
        for view, decode, field, accepted in (
            (version.select(self.WRIST), {self.WRIST: follows}, self.WRIST, [self.WRIST]),
            (both, {self.WRIST: follows, self.HIGH: lambda data, rng: 0}, self.WRIST, other),
            (both, {self.WRIST: follows, self.HIGH: loader.video(at=self.WRIST)}, self.HIGH, other),
            (both, {self.HIGH: follows}, self.HIGH, other),
        ):
            plan = loader.plan({"v": view}, seed=2, global_batch=4)
            with refusal(InvalidRuntime, what=f"decode[{field!r}]", accepted=accepted):
                loader.Loader(plan, 0, 1, decode=decode, workers=0)


def test_choice_is_the_same_from_a_table_and_from_a_file(clips):
    for data in clips.values():
        table = read_packets(index_packets(data))
        timeline = Timeline.of_table(table)
        decoder = VideoDecoder(frames=3, stride=2)
        rng = [np.random.Generator(np.random.Philox(4)) for _ in range(2)]
        wanted = decoder.choose_frames(timeline, rng[0])
        assert np.array_equal(decoder(data, rng[1]), loader.video(3, 2, start=wanted[0])(data))
