"""Chained Ogg, as internet radio is recorded: the clock begins anew with every link; links follow one another."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assets.media.audio import cut as speech
from assets.media.audit import audit, audit_units
from assets.media.cut_audit.findings import SOUND_DIFFERS, SOUND_OFFSET, STAGE
from assets.media.cutters import CUTTERS
from assets.media.policy import AudioPolicy, CutPolicy
from assets.media.unit import Unusable
from loader.modalities import find_decoder

RATE_HZ = 48_000
N_LINKS, LINK_SAMPLES = 3, 76_800
POLICY = CutPolicy(audio=AudioPolicy(segment_s=0.8))
CODECS = ("libopus", "flac", "vorbis")
LINK_S = LINK_SAMPLES / RATE_HZ
PER_LINK = {"vorbis": 1200}
"""Samples by which a link may be longer than its sound: where two of Vorbis meet, the decoder gives what they have in
common, and FFmpeg's encoder pads."""


def click_time_s(link: int) -> float:
    """Seconds after the link's start."""
    return 0.4 + 0.3 * link


@pytest.fixture(params=CODECS)
def chained_file(request: pytest.FixtureRequest, tmp_path: Path, sound_file: Callable[..., str]) -> str:
    """In every link noise of its own that swells, and a click."""
    whole = b""
    for link in range(N_LINKS):
        rng = np.random.default_rng(link)
        sound = 0.02 * np.convolve(rng.standard_normal(LINK_SAMPLES), np.ones(8) / 8, "same")
        sound *= 1 + 0.5 * np.sin(np.arange(LINK_SAMPLES) / 900)
        at = round(click_time_s(link) * RATE_HZ)
        sound[at : at + 48] += 0.7
        stereo = np.stack([sound, sound])  # FFmpeg's encoder of Vorbis takes nothing else
        how = {"codec": request.param, "container": "ogg", "options": {"strict": "experimental"}}
        file = sound_file(stereo, RATE_HZ, f"link-{link}", **how)
        whole += Path(file).read_bytes()
    path = tmp_path / f"{request.param}.ogg"
    path.write_bytes(whole)
    return str(path)


def segment_samples(path: str, scratch: Path) -> list[np.ndarray]:
    """What is stored: float [n] of every segment."""
    row = audit(path, "audio/ogg")
    scratch.mkdir()
    units = CUTTERS["audio"].cut(path, scratch, POLICY)
    audit_units(path, "audio", units, row)
    return [find_decoder("flac")(unit.fields["flac"].read_bytes(), None)[0] for unit in units]


def test_every_link_follows_its_predecessor(chained_file: str, tmp_path: Path) -> None:
    stored = np.concatenate(segment_samples(chained_file, tmp_path / "scratch"))
    slack_s = N_LINKS * PER_LINK.get(Path(chained_file).stem, 0) / RATE_HZ + 0.002
    assert abs(len(stored) / 16_000 - N_LINKS * LINK_S) <= slack_s
    for link in range(N_LINKS):
        begin = round((link * LINK_S + click_time_s(link) - 0.2) * 16_000)
        found_s = (begin + int(np.abs(stored[begin : begin + 6400]).argmax())) / 16_000
        assert found_s == pytest.approx(link * LINK_S + click_time_s(link), abs=slack_s + 0.002)


def test_training_hears_every_link(chained_file: str) -> None:
    samples = find_decoder("opus" if "opus" in chained_file else "ogg")(Path(chained_file).read_bytes(), None)
    slack = N_LINKS * PER_LINK.get(Path(chained_file).stem, 0)
    assert abs(samples.shape[1] - N_LINKS * LINK_SAMPLES) <= slack


@pytest.mark.parametrize("late", [16 * 20, 16_000])
def test_sound_of_another_place_in_a_chain_is_found(
    chained_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The segment that is looked at is in the second link; 20 ms, and a second."""
    really = speech.write_flac

    def shift_samples(path: Path, samples: np.ndarray, *rest: object, **how: object) -> float:
        return really(path, np.roll(np.array(samples), late, axis=-1), *rest, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(speech, "write_flac", shift_samples)
    with pytest.raises(Unusable) as caught:
        segment_samples(chained_file, tmp_path / "scratch")
    assert caught.value.stage == STAGE
    assert caught.value.code in (SOUND_OFFSET, SOUND_DIFFERS)
