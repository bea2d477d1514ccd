import json
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.cutters import kind_of
from assets.media.policy import AudioPolicy, CutPolicy
from assets.media.speech import cut_audio, write_flac
from assets.media.unit import Unit, Unusable

MakeWav = Callable[..., bytes]
POLICY = CutPolicy(audio=AudioPolicy(segment_s=2.0))


def cut(tmp_path: Path, data: bytes) -> list[Unit]:
    (tmp_path / "raw").write_bytes(data)
    return cut_audio(str(tmp_path / "raw"), tmp_path, POLICY)


def heard(unit: Unit) -> tuple[int, str, np.ndarray]:
    with av.open(str(unit.fields["flac"])) as segment:
        stream = segment.streams.audio[0]
        pieces = [frame.to_ndarray()[0] for frame in segment.decode(stream)]
        return stream.rate, stream.layout.name, np.concatenate(pieces)


@pytest.mark.parametrize(
    ("seconds", "lengths"),
    [
        (0.1, [0.1]),
        (2.0, [2.0]),
        (2.4, [2.4]),
        (2.5, [2.0, 0.5]),
        (5.0, [2.0, 2.0, 1.0]),
        (6.2, [2.0, 2.0, 2.2]),
    ],
)
def test_segments_hold_every_sample_once(
    tmp_path: Path, make_wav: MakeWav, seconds: float, lengths: list[float]
) -> None:
    units = cut(tmp_path, make_wav(seconds))
    assert [unit.metadata["duration_s"] for unit in units] == pytest.approx(lengths)
    pieces = [heard(unit) for unit in units]
    assert all((rate, layout) == (16000, "mono") for rate, layout, _ in pieces)
    joined = np.concatenate([samples for _, _, samples in pieces])
    expected = np.frombuffer(make_wav(seconds)[44:], "<i2")
    assert np.array_equal(joined, expected)  # 16 kHz mono needs no resampling: bit for bit
    assert units[-1].end == f"{len(expected)}@1/16000"


@pytest.mark.parametrize(("rate_hz", "channels"), [(8000, 1), (44100, 2), (48000, 2), (22050, 1)])
def test_other_rates_and_channels_are_brought_to_one(
    tmp_path: Path, make_wav: MakeWav, rate_hz: int, channels: int
) -> None:
    (unit,) = cut(tmp_path, make_wav(1.0, rate_hz, channels))
    rate, layout, samples = heard(unit)
    assert (rate, layout) == (16000, "mono")
    assert abs(len(samples) - 16000) <= 32
    spectrum = np.abs(np.fft.rfft(samples[:16000].astype(float)))
    assert abs(int(spectrum.argmax()) * 16000 / min(len(samples), 16000) - 440) < 2
    assert np.abs(samples).max() < 9000  # the mean of equal channels, not their sum
    assert json.loads(json.dumps(unit.fields["json"]))["raw"]["rate_hz"] == rate_hz


def test_a_truncated_file_is_rejected(tmp_path: Path, make_wav: MakeWav) -> None:
    tone = np.frombuffer(make_wav(4.0)[44:], "<i2")
    write_flac(tmp_path / "whole", np.random.default_rng(1).integers(-9000, 9000, len(tone), np.int16), 16000)
    whole = (tmp_path / "whole").read_bytes()
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, whole[: len(whole) // 2])
    assert refused.value.outcome == "rejected"


def test_a_sound_that_ends_before_its_header_says_is_rejected(tmp_path: Path, make_wav: MakeWav) -> None:
    whole, path = make_wav(4.0), tmp_path / "raw"
    for shorter in (len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:shorter])
        with pytest.raises(
            Unusable, match=f"announces {len(whole)} bytes, the file has {shorter}"
        ) as refused:
            kind_of(str(path), "audio/wav")
        assert refused.value.code == "truncated"
    path.write_bytes(whole[:4] + b"\xff\xff\xff\xff" + whole[8:])  # written while it was being recorded
    assert kind_of(str(path), "audio/wav") == "audio"


def test_a_container_that_ends_early_is_rejected(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(-9000, 9000, 64000, np.int16)
    write_flac(tmp_path / "whole.flac", noise, 16000)
    options = {"movflags": "faststart"}
    with (
        av.open(str(tmp_path / "whole.flac")) as source,
        av.open(str(tmp_path / "whole.mp4"), "w", format="mp4", options=options) as target,
    ):
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    whole = (tmp_path / "whole.mp4").read_bytes()
    assert len(cut(tmp_path, whole)) == 2
    with av.open(str(tmp_path / "whole.mp4")) as container:
        packets = [packet for packet in container.demux() if packet.pos is not None]
        half = packets[len(packets) // 2]
        assert half.pos is not None
        end = half.pos + half.size
    with pytest.raises(Unusable, match=r"announces 4\.00 s") as refused:
        cut(tmp_path, whole[:end])
    assert refused.value.code == "truncated"


@pytest.mark.parametrize("data", [b"", b"RIFF\x00\x00\x00\x00WAVE", b"fLaC" + bytes(100)])
def test_rubbish_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, data)
    assert refused.value.outcome == "rejected"


def test_no_samples_at_all(tmp_path: Path, make_wav: MakeWav) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, make_wav(0.0))
    assert refused.value.code in ("no_samples", "unreadable")
