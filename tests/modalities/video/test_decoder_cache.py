"""Decoders that are kept: a used one gives what a new one gives, bit for bit, and what cannot is not kept."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.modalities.image.crop import Framing
from loader.modalities.video.decode import read_bare
from loader.modalities.video.packet_decode import (
    MAX_DECODERS,
    MAX_PX,
    DecoderCache,
    decoder_settings,
    preamble,
)
from loader.modalities.video.packet_table import PacketTable, index_packets, read_packets
from loader.modalities.video.timeline import Timeline
from tests.servers.patience import PATIENCE_S

X264 = {"crf": "20", "g": "12", "bf": "2", "profile": "main"}
HOW = {
    "plain": {"options": X264},
    "same settings": {"options": X264},
    "no b": {"options": {**X264, "bf": "0"}},
    "one gop": {"options": {**X264, "g": "250"}},
    "open gop": {"options": {**X264, "x264-params": "open-gop=1:scenecut=0"}},
    "refresh": {"options": {**X264, "x264-params": "intra-refresh=1"}},
    "vlc": {"options": {**X264, "x264-params": "cabac=0"}},
    "slices": {"options": {**X264, "x264-params": "slices=3:aud=1"}},
    "repeated headers": {"options": {**X264, "x264-params": "repeat-headers=1"}},
    "full range": {"options": {**X264, "x264-params": "fullrange=on:colormatrix=bt709"}},
    "hevc": {
        "codec": "libx265",
        "options": {"crf": "20", "x265-params": "keyint=12:open-gop=0:log-level=none:pools=none"},
    },
    "hevc, small blocks": {
        "codec": "libx265",
        "options": {"crf": "20", "x265-params": "keyint=12:open-gop=0:ctu=16:log-level=none:pools=none"},
    },
    "hevc, open gop": {
        "codec": "libx265",
        "options": {"crf": "20", "x265-params": "keyint=12:open-gop=1:log-level=none:pools=none"},
    },
    "av1": {"codec": "libsvtav1", "rate": 25, "options": {"g": "12", "preset": "12", "crf": "40"}},
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "20", "deadline": "realtime", "cpu-used": "8"}},
    "mpeg4": {"codec": "mpeg4", "options": {"g": "9", "bf": "2", "qscale": "4"}},
    "mjpeg": {"codec": "mjpeg", "options": {"qscale": "3", "strict": "unofficial"}},
}
N_FRAMES = 48


class Video(NamedTuple):
    """A video to read clips from."""

    data: bytes
    table: PacketTable
    timeline: Timeline

    @staticmethod
    def of(data):
        table = read_packets(index_packets(data))
        return Video(data, table, Timeline.of_table(table))

    def bodies(self, frames):
        return {
            number: self.data[self.table.pos[number] :][: self.table.size[number]]
            for run in self.timeline.runs(frames)
            for number in range(run.first, run.stop)
        }

    def clip(self, frames, bodies=None, framing=None):
        bodies = self.bodies(frames) if bodies is None else bodies
        return read_bare(self.table, self.timeline, bodies, frames, framing or Framing())

    def can_be_kept(self, frames):
        return preamble(self.table.facts, self.bodies(frames), self.timeline.runs(frames)) is not None


@pytest.fixture(scope="module")
def coded_videos(media):
    made = {}
    for at, (name, how) in enumerate(HOW.items()):
        pts = [40 * n for n in range(N_FRAMES)]
        made[name] = Video.of(media.encode_video(pts[at % 5 :] if name != "plain" else pts, **how))
    made["told vlc, says cabac"] = change_parameters(made["plain"], made["vlc"])
    return made


def change_parameters(video, other):
    """A video whose container has another one's parameter sets; its own stand in front of its first picture.

    The other's differ in one bit: how its pictures are coded.
    """
    own, others = video.table.facts.extradata, other.table.facts.extradata
    n = int.from_bytes(own[6:8], "big")
    assert own[8 : 8 + n] == others[8 : 8 + n]
    pictures = own[8 + n + 1 :]
    in_band = (int.from_bytes(pictures[:2], "big")).to_bytes(4, "big") + pictures[2:]
    at, nbytes = int(video.table.pos[0]), int(video.table.size[0])
    first = in_band + video.data[at : at + nbytes]
    pos, size = video.table.pos.copy(), video.table.size.copy()
    pos[0], size[0] = len(video.data), len(first)
    table = replace(video.table, pos=pos, size=size, facts=replace(video.table.facts, extradata=others))
    return Video(video.data + first, table, video.timeline)


def in_a_new_thread(function, *args):
    """The same with decoders that are new."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def same(one, other):
    return (one is None and other is None) or np.array_equal(one, other)


class Opened:
    """Counts the decoders that this thread opens."""

    def __enter__(self):
        self.n = 0
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, called):
        if event == "c_call" and getattr(called, "__qualname__", "") == "VideoCodecContext.open":
            self.n += 1


def window(video, first, n=8):
    return list(range(first, min(first + n, len(video.timeline))))


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.data())
def test_kept_decoders_give_what_new_ones_give(coded_videos, data):
    """Any clips one after the other in one thread, sound and damaged, with bodies missing: as each in a new thread."""
    names = data.draw(st.lists(st.sampled_from(sorted(coded_videos)), min_size=2, max_size=3, unique=True))
    for _ in range(data.draw(st.integers(3, 7))):
        video = coded_videos[data.draw(st.sampled_from(names))]
        frames = window(video, data.draw(st.integers(0, len(video.timeline) - 2)))
        bodies = video.bodies(frames)
        for number in data.draw(st.lists(st.sampled_from(sorted(bodies)), max_size=2)):
            body = bytearray(bodies[number])
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] ^= data.draw(st.integers(0, 255))
            bodies[number] = bytes(body[: data.draw(st.sampled_from([len(body), at + 1]))])
        assert same(video.clip(frames, bodies), in_a_new_thread(video.clip, frames, bodies))


@pytest.mark.parametrize("name", ["plain", "vlc", "slices", "hevc, small blocks", "av1"])
def test_damaged_picture_shows_nothing_of_other_clips(coded_videos, name):
    """A decoder of HEVC reports no fault for most of these, and leaves the rest of the picture as its memory is."""
    video = coded_videos[name]
    frames = window(video, 12, 1)
    bodies = video.bodies(frames)
    key = min(bodies)
    for at in range(8, len(bodies[key]), max(1, len(bodies[key]) // 40)):
        body = bytearray(bodies[key])
        body[at] ^= 0x10
        damaged = {**bodies, key: bytes(body)}
        video.clip(window(video, 30))
        assert same(video.clip(frames, damaged), in_a_new_thread(video.clip, frames, damaged))


@pytest.mark.parametrize("name", sorted(HOW))
def test_clip_is_the_same_behind_any_other(coded_videos, media, name):
    video = coded_videos[name]
    shown = list(media.sequential(video.data))
    frames = window(video, 5, 12)
    for other in coded_videos.values():
        for first in (0, 13):
            other.clip(window(other, first))
            assert np.array_equal(video.clip(frames), shown[5:17])


def test_decoders_are_opened_once_for_clips_of_one_encoder(coded_videos):
    videos = [coded_videos["plain"], coded_videos["same settings"]]
    for name, kinds in (("h264", videos), ("av1", [coded_videos["av1"]])):
        clips = [(video, window(video, first)) for first in (0, 13, 25, 1, 14, 26) for video in kinds]

        def read(clips=clips):
            with Opened() as opened:
                for video, frames in clips:
                    video.clip(frames)
            return opened.n

        # The first packet of H.264 says which encoder it was.
        assert in_a_new_thread(read) == (2 if name == "h264" else 1), name


def test_clips_that_leave_something_behind_have_a_decoder_of_their_own(coded_videos):
    kept = {name for name, video in coded_videos.items() if video.can_be_kept(window(video, 13))}
    assert {"plain", "same settings", "no b", "slices", "vlc", "full range", "av1"} <= kept
    assert not kept & {"refresh", "repeated headers", "hevc", "vp9", "mpeg4", "mjpeg"}
    assert not coded_videos["open gop"].can_be_kept(window(coded_videos["open gop"], 30))


def test_decoder_is_for_parameter_sets_that_it_was_told(coded_videos):
    """The pictures' parameters of "plain" come in its first packet; of "vlc", which has the same extradata, never."""
    for _ in range(2):
        for name in ("told vlc, says cabac", "vlc"):
            frames = window(coded_videos[name], 0)
            got = coded_videos[name].clip(frames)
            assert got is not None
            assert np.array_equal(got, in_a_new_thread(coded_videos[name].clip, frames))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.sampled_from(["plain", "av1"]), st.integers(0, 3), st.binary(max_size=40))
def test_any_bytes_have_a_preamble_or_none(coded_videos, name, n_zeros, body):
    """Packets of any bytes, whose lengths are small as often as not, are split within them or refused."""
    video = coded_videos[name]
    found = preamble(video.table.facts, {0: bytes(n_zeros) + body}, video.timeline.runs([0]))
    assert found is None or found in body or found in bytes(n_zeros) + body


def test_damaged_clip_discards_its_decoder(coded_videos):
    video = coded_videos["plain"]
    frames = window(video, 14)
    video.clip(frames)
    broken = {
        number: body[:4] + b"\x65" + b"\xaa" * (len(body) - 5)
        for number, body in video.bodies(frames).items()
    }
    with Opened() as opened:
        video.clip(frames)
    assert opened.n == 0
    assert video.clip(frames, broken) is None
    with Opened() as opened:
        assert np.array_equal(video.clip(frames), in_a_new_thread(video.clip, frames))
    assert opened.n == 1


def test_every_setting_of_a_decoder_names_it(coded_videos):
    facts = coded_videos["plain"].table.facts
    other = {
        "codec": "hevc",
        "codec_tag": "avc3",
        "extradata": b"",
        "width_px": 2,
        "height_px": 2,
        "pix_fmt": "gray",
        "color_range": 2,
        "color_primaries": 9,
        "color_trc": 9,
        "colorspace": 9,
        "sar": facts.sar + 1,
        "reorder_frames": 7,
    }
    for name, value in other.items():
        assert decoder_settings(replace(facts, **{name: value})) != decoder_settings(facts), name
    assert decoder_settings(replace(facts, nbytes=1, crc32c=1, end_pts=1)) == decoder_settings(facts)


class Decoder:
    """Stands for one: the cache looks at none."""


def test_few_decoders_of_few_pixels_are_kept():
    cache = DecoderCache()
    for number in range(MAX_DECODERS + 3):
        cache.give_back((number,), Decoder(), 100)
    assert [cache.take((number,)) is not None for number in range(MAX_DECODERS + 3)] == [False] * 3 + [
        True
    ] * MAX_DECODERS
    assert cache.take((MAX_DECODERS + 2,)) is None  # it is lent
    for number in range(3):
        cache.give_back((number,), Decoder(), MAX_PX // 2)
    assert [cache.take((number,)) is not None for number in range(3)] == [False, True, True]
    cache.give_back(("large",), Decoder(), MAX_PX + 1)
    assert cache.take(("large",)) is None


def test_decoders_end_with_their_thread():
    cache, freed = DecoderCache(), threading.Event()

    class Told:
        def __del__(self):
            freed.set()

    in_a_new_thread(lambda: cache.give_back(("one",), Told(), 1))
    assert freed.wait(PATIENCE_S)
    assert cache.take(("one",)) is None


FORK = """
import os, sys
from pathlib import Path
import numpy as np
from loader.modalities.image.crop import Framing
from loader.modalities.video.decode import read_bare
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.modalities.video.timeline import Timeline

data = Path(sys.argv[1]).read_bytes()
table = read_packets(index_packets(data))
bodies = dict(enumerate(data[at : at + n] for at, n in zip(table.pos.tolist(), table.size.tolist())))

def clip():
    return read_bare(table, Timeline.of_table(table), bodies, range(14, 22), Framing())

expected = clip()
child = os.fork()
same = np.array_equal(clip(), expected)
if not child:
    os._exit(0 if same else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert same
"""


def test_parent_and_forked_child_read_with_kept_decoders(coded_videos, tmp_path):
    """At the same time, in a process of its own: this one has threads."""
    file = tmp_path / "clip.mp4"
    file.write_bytes(coded_videos["plain"].data)
    subprocess.run([sys.executable, "-c", FORK, file], check=True, timeout=PATIENCE_S)


def real_videos():
    folder = os.environ.get("PENSTOCK_MEDIA")
    found = sorted(Path(folder).rglob("*")) if folder else []
    return [path for path in found if path.suffix.lower() in (".mp4", ".mov", ".m4v", ".mkv", ".webm")]


@pytest.mark.server
def test_kept_decoders_give_what_new_ones_give_of_real_videos(at_scale):
    """Clips of all videos of the corpus that have packet tables, in turn."""
    read = []
    for path in real_videos():
        if path.stat().st_size < at_scale(300_000, 5_000_000) and path.parent.name != "broken":
            try:
                video = Video.of(path.read_bytes())
            except Exception:  # noqa: BLE001 - no video
                continue
            if not video.table.facts.whole_because and len(video.timeline) > 1:
                read.append(video)
    rng = np.random.default_rng(3)
    for at in [*rng.permutation(len(read)), *rng.permutation(len(read))]:
        video = read[at]
        for first in rng.integers(0, min(len(video.timeline), 60), 2).tolist():
            frames = window(video, first, 4)
            size = Framing(size=(36, 64))
            assert same(video.clip(frames, None, size), in_a_new_thread(video.clip, frames, None, size))
