import hashlib
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest

from assets.media.audio import audit as audio_audit
from assets.media.audit import audit
from assets.media.clips.cut import cut_video
from assets.media.container import PacketIndex, index_packets, open_container
from assets.media.cutters import Known
from assets.media.media_table import MEDIA, media_row
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unusable
from assets.media.video import audit as video_audit
from assets.media.video.stream_facts import orientation
from assets.media.video.timestamps import TimedFrame, Timing, frame_crc, seek_ok
from loader.errors import MissingDependency
from tests.refusals import refusal

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
SMALL = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=2.0))
MP4, WAV = "video/mp4", "audio/wav"


def audit_refusal(path: str, mime: str = MP4) -> tuple[str, str, str]:
    with pytest.raises(Unusable) as caught:
        audit(path, mime)
    return caught.value.outcome, caught.value.stage, caught.value.code


def test_plain_video(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    row = audit(encode_video(numbered_frames(50)), MP4)
    assert list(row) == MEDIA.names
    pa.Table.from_pylist([row], schema=MEDIA)
    facts: dict[str, Any] = {
        "kind": "video", "codec": "h264", "time_base_num": 1, "time_base_den": 1000, "start_pts": 0,
        "end_pts": 2000, "duration_s": 2.0, "n_packets": 50, "n_discard_packets": 0, "n_frames_decoded": 50,
        "n_keyframes": 2, "max_gop_frames": 25, "is_vfr": False, "min_pts_gap": 40, "max_pts_gap": 40,
        "width_px": 96, "height_px": 64, "upright_width_px": 96, "upright_height_px": 64, "sar_num": 1,
        "rotation_deg": 0, "is_flipped": False, "pix_fmt": "yuv420p", "bit_depth": 8, "hdr": False,
        "colour_space": None, "colour_assumed": True, "n_corrupt": 0, "n_pts_backward": 0, "n_pts_dup": 0,
        "tail_missing_s": 0.0, "seek_ok": True, "black_ratio": 0.0, "frozen_ratio": 0.0, "audio_codec": None,
        "image_mode": None,
    }  # fmt: skip
    assert {name: row[name] for name in facts} == facts
    assert row["luma_mean"] == pytest.approx(40 + 49, abs=1.5)  # full range, as the grey levels were given
    assert row["motion"] == pytest.approx(2, abs=0.3)


def test_video_that_promises_more_samples_than_it_has_bytes_is_refused_by_its_header(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    """FFmpeg would build an index of 20 million entries: 51 s and 775 MiB."""
    path = Path(encode_video(numbered_frames(5)))
    data = bytearray(path.read_bytes())
    struct.pack_into(">II", data, data.index(b"stsz") + 8, 1, 20_000_000)
    path.write_bytes(data)
    for found in (MP4, "audio/mp4"):
        assert audit_refusal(str(path), found) == ("rejected", "probe", "bad_header")


def test_uneven_and_late_times(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    row = audit(encode_video(numbered_frames(4), pts=[500, 540, 541, 1000]), MP4)
    assert (row["start_pts"], row["min_pts_gap"], row["max_pts_gap"], row["is_vfr"]) == (500, 1, 459, True)
    row = audit(encode_video(numbered_frames(4), pts=[0, 40, 540, 580]), MP4)
    assert (row["min_pts_gap"], row["max_pts_gap"]) == (40, 500)


def test_times_that_cannot_be_true(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    path = encode_video(numbered_frames(4), pts=[0, 40, 80, 86_400_100])
    assert audit_refusal(path) == ("rejected", "decode", "timestamps")
    frame = av.VideoFrame(16, 16)
    for tagged, fails in (([0, 1, 0, 3], False), ([0, 0, 1536, 512, 0, 0, 0, 0, 1536, 512], True)):
        timing = Timing()
        for pts in tagged:
            timing.add(TimedFrame(frame, pts, pts))
        with refusal(Unusable, what="timestamps", given=8) if fails else nullcontext():
            timing.facts(Fraction(1, 1000))


@pytest.mark.parametrize("options", [{"crf": "1", "bf": "0"}, {"crf": "1", "bf": "3", "b-adapt": "0"}])
def test_b_frames(encode_video: EncodeVideo, noise_frames: MakeFrames, options: dict[str, str]) -> None:
    row = audit(encode_video(noise_frames(20), options=options), MP4)
    assert row["has_b_frames"] is (options["bf"] != "0")
    assert row["seek_ok"] is True


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"crf": "1", "bf": "3", "b-adapt": "0", "b-pyramid": "normal", "g": "12"}),
        ("libsvtav1", {"crf": "20", "preset": "10", "g": "30"}),  # its decoder heeds what it is told first
    ],
)
def test_every_frame_is_found_among_b_frames(
    encode_video: EncodeVideo, noise_frames: MakeFrames, codec: str, options: dict[str, str]
) -> None:
    """Also those on which others build, and those on which none does, whose neighbours are passed over."""
    path = encode_video(noise_frames(30), codec=codec, options=options)
    with open_container(path) as container:
        index = index_packets(container, container.streams.video[0])
    with open_container(path) as container:
        hashes = {frame.pts or 0: frame_crc(frame) for frame in container.decode(video=0)}
    assert len(hashes) == 30
    assert seek_ok(path, hashes, index)
    assert seek_ok(path, dict(reversed(hashes.items())), index)
    for pts, crc in hashes.items():
        assert not seek_ok(path, {pts: crc ^ 1}, index)


def test_black_and_frozen(encode_video: EncodeVideo) -> None:
    black, grey = np.zeros((64, 96, 3), np.uint8), np.full((64, 96, 3), 128, np.uint8)
    row = audit(encode_video([black] * 5 + [grey] * 15), MP4)
    assert (row["black_ratio"], row["frozen_ratio"], row["flat_ratio"]) == (0.25, 0.9, 1.0)


def test_video_with_content_is_not_flat(encode_video: EncodeVideo) -> None:
    black = np.zeros((64, 96, 3), np.uint8)
    lit = black.copy()
    lit[:32] = 20
    assert audit(encode_video([black] * 5 + [lit] * 15), MP4)["flat_ratio"] == 0.25


def test_tags_are_told_and_nothing_is_guessed(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    tags = {"color_range": 1, "colorspace": 1, "color_primaries": 1, "color_trc": 1}
    row = audit(encode_video(numbered_frames(5), tags=tags), MP4)
    names = ("colour_range", "colour_space", "colour_primaries", "colour_trc", "colour_assumed")
    assert [row[name] for name in names] == ["tv", "bt709", "bt709", "bt709", False]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"pix_fmt": "yuv420p10le"}, "bit_depth"),
        ({"pix_fmt": "yuv420p10le", "tags": {"color_trc": 16, "color_primaries": 9, "colorspace": 9}}, "hdr"),
        ({"pix_fmt": "yuv420p10le", "tags": {"color_trc": 18}}, "hdr"),
    ],
)
def test_deep_colour_and_hdr_are_dropped(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, options: dict[str, Any], code: str
) -> None:
    assert audit_refusal(encode_video(numbered_frames(5), **options)) == ("dropped", "probe", code)


TURNS = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


@pytest.mark.parametrize("degrees", TURNS)
@pytest.mark.parametrize("flipped", [False, True])
def test_orientation_says_how_to_make_it_upright(degrees: int, flipped: bool) -> None:
    a, b, c, d = TURNS[degrees]
    if flipped:  # x is mirrored before the turn
        a, b = -a, -b
    assert orientation(tuple(value * 65536 for value in (a, b, 0, c, d, 0, 0, 0, 16384))) == (
        degrees,
        flipped,
    )
    assert orientation(None) == (0, False)


def test_turned_video_is_told_upright(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    matrix = tuple(value * 65536 for value in (0, 1, 0, -1, 0, 0, 0, 0, 16384))
    row = audit(encode_video(numbered_frames(5), matrix=matrix), MP4)
    assert (row["width_px"], row["upright_width_px"], row["rotation_deg"]) == (96, 64, 90)


def test_frames_that_an_edit_list_hides(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = Path(encode_video(numbered_frames(50)))
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 4
    version, count = data[place], struct.unpack_from(">I", data, place + 4)[0]
    assert (version, count) == (0, 1)
    duration, media_time = struct.unpack_from(">Ii", data, place + 8)
    struct.pack_into(">Ii", data, place + 8, duration - 400, media_time + 400)
    path.write_bytes(bytes(data))
    row = audit(str(path), MP4)
    assert (row["n_packets"], row["n_discard_packets"], row["n_frames_decoded"]) == (50, 10, 40)
    assert (row["start_pts"], row["end_pts"]) == (0, 1600)
    assert row["luma_mean"] == pytest.approx(40 + 2 * 29.5, abs=1.5)  # of the frames that are seen
    units = cut_video(str(path), tmp_path, CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=0.8)))
    assert [unit.fields["json"]["pts"] for unit in units] == [
        list(range(0, 800, 40)),
        list(range(800, 1600, 40)),
    ]


def test_hidden_frames_a_day_away_are_a_damaged_clock(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    """They would be frames that an edit list hides; ffprobe shows them."""
    path = Path(encode_video(numbered_frames(50), options={"crf": "1", "g": "50", "bf": "2", "b-adapt": "0"}))
    data = bytearray(path.read_bytes())
    place = data.index(b"ctts") + 4
    count = struct.unpack_from(">I", data, place + 4)[0]
    struct.pack_into(">I", data, place + 8 + 8 * (count - 1) + 4, 2_000_000_000 - 2**20)
    path.write_bytes(bytes(data))
    assert audit_refusal(str(path)) == ("rejected", "probe", "timestamps")


def test_frames_of_avi_get_their_times_in_order(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    options = {"crf": "1", "bf": "2", "b-adapt": "0", "g": "50"}
    row = audit(encode_video(numbered_frames(50), container="avi", options=options), "video/x-msvideo")
    assert row["n_frames_decoded"] == 50
    assert row["is_vfr"] is False
    assert row["min_pts_gap"] == row["max_pts_gap"]


def test_picture_that_nobody_decodes_is_not_taken_for_sound(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    tone = (8000 * np.sin(np.arange(16000) / 5)).astype(np.int16)
    path = Path(encode_video(numbered_frames(25), sound=(tone, 16000, "flac")))
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzz1").replace(b"avcC", b"zzzC"))
    assert audit_refusal(str(path)) == ("not_supported", "probe", "unknown_codec")


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_truncated_video(encode_video: EncodeVideo, noise_frames: MakeFrames, share: float) -> None:
    path = Path(encode_video(noise_frames(75)))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert audit_refusal(str(path)) == ("rejected", "probe", "truncated")


def test_what_is_no_media(tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    assert audit_refusal(str(path), "application/x-empty") == ("rejected", "probe", "empty")
    path.write_bytes(bytes(100))
    assert audit_refusal(str(path), "application/octet-stream") == ("rejected", "probe", "unknown_type")
    assert audit_refusal(str(path), "application/pdf") == ("dropped", "probe", "type_not_taken")
    with refusal(Unusable, what="type_not_taken", given="video/mp4"):
        audit(encode_video(numbered_frames(3)), MP4, ("image",))
    with pytest.raises(KeyError, match="not columns"):
        media_row({"width": 3})


def test_heic_without_its_package_raises_and_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert audit_refusal(str(path), "image/heic")[:2] == (
        "rejected",
        "probe",
    )  # the package is there, a picture is not
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(MissingDependency, match="pip install pi-heif"):
        audit(str(path), "image/heic")


def test_sound_beside_a_picture(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    loud = (np.tile([32767, -32768], 16000)[:24000]).astype(np.int16)
    row = audit(encode_video(numbered_frames(50), sound=(loud, 16000, "flac")), MP4)
    assert (row["audio_codec"], row["sample_rate_hz"], row["channels"]) == ("flac", 16000, 1)
    assert (row["n_samples"], row["audio_duration_s"], row["audio_offset_s"]) == (24000, 1.5, 0.0)
    assert (row["clipped_ratio"], row["silence_ratio"]) == (1.0, 0.0)


def packet_ranges(path: str, kind: str) -> list[tuple[int, int]]:
    """(place in the file, size) of every packet of the first stream of this kind."""
    with av.open(path) as container:
        stream = next(one for one in container.streams if one.type == kind)
        return [(packet.pos or 0, packet.size) for packet in container.demux(stream) if packet.size]


def test_picture_may_be_the_second_stream(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames
) -> None:
    """The frames that a decoder holds back come out at the end, whichever stream they belong to."""
    tone = (8000 * np.sin(np.arange(24000) / 5)).astype(np.int16)
    options = {"crf": "10", "bf": "3", "b-adapt": "0", "g": "50"}
    path = encode_video(noise_frames(30), options=options, sound=(tone, 16000, "flac"))
    first = audit(path, MP4)
    with av.open(path) as source, av.open(str(tmp_path / "turned"), "w", format="mp4") as out:
        streams = [source.streams.audio[0], source.streams.video[0]]
        copies = [out.add_stream_from_template(stream) for stream in streams]
        for packet in source.demux(*streams):
            if packet.size:
                packet.stream = copies[streams.index(packet.stream)]
                out.mux(packet)
    second = audit(str(tmp_path / "turned"), MP4)
    names = (
        "n_frames_decoded",
        "n_packets",
        "n_samples",
        "seek_ok",
        "luma_mean",
        "audio_error",
        "has_b_frames",
    )
    assert [second[name] for name in names] == [first[name] for name in names]
    assert (first["n_frames_decoded"], first["n_samples"], first["has_b_frames"]) == (30, 24000, True)


def test_video_with_damaged_sound_is_admitted_without_it(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    tone = (8000 * np.sin(np.arange(32000) / 5)).astype(np.int16)
    path = Path(encode_video(numbered_frames(50), sound=(tone, 16000, "flac")))
    sound_one = audit(str(path), MP4)
    assert sound_one["audio_error"] is None
    data = bytearray(path.read_bytes())
    for place, size in packet_ranges(str(path), "audio")[2:]:
        data[place : place + size] = bytes(size)
    path.write_bytes(bytes(data))
    row = audit(str(path), MP4)
    assert row["audio_error"].startswith("undecodable: after ")
    changed = {name: row[name] for name in row if row[name] != sound_one[name]}
    assert {"n_samples", "audio_duration_s", "audio_offset_s", "clipped_ratio", "silence_ratio"} < set(
        changed
    )
    assert [name for name, value in changed.items() if value is not None] == ["audio_error"]
    assert (row["audio_codec"], row["n_frames_decoded"], row["seek_ok"]) == ("flac", 50, True)
    (unit,) = cut_video(str(path), tmp_path, SMALL, Known(audit=row))
    assert unit.metadata["has_sound"] is False
    assert "sound.flac" not in unit.fields


def test_sound_whose_last_packet_is_missing_is_told(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    tone = (8000 * np.sin(np.arange(36000) / 5)).astype(np.int16)
    path = Path(encode_video(numbered_frames(50), sound=(tone, 16000, "flac")))
    (last, size), *_ = sorted(packet_ranges(str(path), "audio"), reverse=True)
    assert last + size == path.stat().st_size
    cut = path.read_bytes()[:last]
    path.write_bytes(cut)
    assert audit_refusal(str(path)) == ("rejected", "probe", "truncated")  # by the size of its box
    at = cut.rindex(b"mdat") - 4
    path.write_bytes(cut[:at] + (len(cut) - at).to_bytes(4, "big") + cut[at + 4 :])
    row = audit(str(path), MP4)
    assert row["audio_error"].startswith("truncated: ")
    assert (row["n_samples"], row["n_frames_decoded"]) == (None, 50)


def test_sound_that_nobody_can_place_is_told(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    tone = (8000 * np.sin(np.arange(16000) / 5)).astype(np.int16)
    path = encode_video(numbered_frames(25), sound=(tone, 16000, "flac"))
    monkeypatch.setattr(audio_audit, "MAX_CHANNELS", 0)
    row = audit(path, MP4)
    assert row["audio_error"].startswith("channels: ")
    assert (row["n_samples"], row["n_frames_decoded"]) == (None, 25)


def test_damaged_slice_of_hevc_is_refused(encode_video: EncodeVideo, noise_frames: MakeFrames) -> None:
    options = {"crf": "10", "x265-params": "log-level=none:hash=1", "g": "20"}
    path = Path(encode_video(noise_frames(12), codec="libx265", options=options))
    assert audit(str(path), MP4)["n_frames_decoded"] == 12
    whole = path.read_bytes()
    for number, (place, size) in list(enumerate(packet_ranges(str(path), "video")))[2:10:3]:
        data = bytearray(whole)
        data[place + size * 2 // 3] ^= 0x10
        path.write_bytes(bytes(data))
        with av.open(str(path)) as container:  # as it is read without asking for more
            assert len(list(container.decode(video=0))) == 12
        with pytest.raises(Unusable) as caught:
            audit(str(path), MP4)
        assert (caught.value.stage, caught.value.code) == ("decode", "undecodable")
        assert caught.value.at_frame is not None
        assert caught.value.at_frame <= number


OPEN = {"crf": "28", "x265-params": "log-level=none:keyint=12:min-keyint=12:open-gop=1:bframes=3"}


@pytest.mark.parametrize(
    ("codec", "options", "n_frames"),
    [
        ("libx264", {"crf": "20", "g": "12"}, 24),
        ("libx265", OPEN, 24),
        ("mpeg4", {"b": "900k", "g": "12"}, None),
    ],
)
def test_recording_that_begins_in_the_middle(
    encode_video: EncodeVideo,
    noise_frames: MakeFrames,
    codec: str,
    options: dict[str, str],
    n_frames: int | None,
) -> None:
    """It begins with its first keyframe, whatever its decoder would make of the frames before."""
    still = noise_frames(1, 128, 192)[0]
    moving = [np.roll(still, 3 * number, 1) for number in range(36)]
    path = Path(encode_video(moving, codec=codec, container="mpegts", options=options))
    places = packet_ranges(str(path), "video")
    data = path.read_bytes()
    tables, middle = data[: 3 * 188], places[4][0]  # the tables of programmes come first
    path.write_bytes(tables + data[middle:])
    if n_frames is None:
        assert audit_refusal(str(path), "video/mp2t") == ("rejected", "decode", "no_keyframe")
        return
    row = audit(str(path), "video/mp2t")
    assert (row["n_frames_decoded"], row["n_corrupt"], row["seek_ok"]) == (n_frames, 0, True)
    assert row["n_packets"] > n_frames


def test_first_damaged_frame_is_told(encode_video: EncodeVideo, noise_frames: MakeFrames) -> None:
    path = Path(encode_video(noise_frames(12), options={"crf": "10", "g": "1"}))
    data = bytearray(path.read_bytes())
    for place, size in packet_ranges(str(path), "video")[5:9:3]:
        data[place + size // 2 : place + size // 2 + 8] = bytes(8)
    path.write_bytes(bytes(data))
    with refusal(Unusable, what="corrupt", given=2) as caught:
        audit(str(path), MP4)
    assert (caught.value.code, caught.value.at_frame) == ("corrupt", 5)


def test_fields_are_told(encode_video: EncodeVideo, noise_frames: MakeFrames) -> None:
    whole = audit(encode_video(noise_frames(10)), MP4)
    assert (whole["field_order"], whole["interlaced_ratio"]) == ("progressive", 0.0)
    assert (whole["level"], whole["profile"]) == (10, "High")
    options = {"x264-params": "tff=1:interlaced=1", "crf": "20"}
    fields = audit(encode_video(noise_frames(10), options=options), MP4)
    assert (fields["field_order"], fields["interlaced_ratio"]) == ("tt", 1.0)


def test_extradata_is_told_and_hashed(encode_video: EncodeVideo, noise_frames: MakeFrames) -> None:
    path = encode_video(noise_frames(3))
    data = Path(path).read_bytes()
    place = data.index(b"avcC")
    box = data[place + 4 : place - 4 + int.from_bytes(data[place - 4 : place], "big")]
    row = audit(path, MP4)
    assert (row["extradata_nbytes"], row["extradata_sha256"]) == (len(box), hashlib.sha256(box).hexdigest())


def test_audit_seeks_the_last_frame_and_the_longest_gap(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some frames at random, the last, and the one behind the longest gap."""
    sought: list[set[int]] = []

    def record_hashes(path: str, hashes: Mapping[int, int], index: PacketIndex) -> bool:
        sought.append(set(hashes))
        return seek_ok(path, hashes, index)

    monkeypatch.setattr(video_audit, "seek_ok", record_hashes)
    times = [40 * number + (3000 if number >= 20 else 0) for number in range(50)]
    row = audit(encode_video(numbered_frames(50), pts=times), MP4)
    assert row["seek_ok"] is True
    assert {times[20], times[49]} < sought[0]
    assert len(sought[0]) == 2 + video_audit.N_SEEKS
