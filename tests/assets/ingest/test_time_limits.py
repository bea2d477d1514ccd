"""Time limits follow what there is to decode, are said before they strike, and end at a ceiling."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from assets.ingest.cut import cut_objects
from assets.ingest.media import AuditBatch, audit_objects
from assets.ingest.time_limits import container_limits, media_row_limits
from assets.media.decode_time import PIXELS_PER_S, VALUES_PER_S, DecodeWork, media_work, read_header_work
from assets.media.sniff import HEAD_BYTES, sniff
from assets.spec import DatasetSpec
from loader.errors import InvalidSpec
from loader.storage import Store, open_store
from penstock.compute.pool import Compute, InlineCompute, LocalCompute, Outcome
from tests.assets.ingest.landed import open_batch
from tests.assets.media.conftest import encode, write_sound
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", work_timeout_s=100.0, max_work_timeout_s=5_000.0)
RATE_HZ = 8_000


class Told(InlineCompute):
    """Keeps how long units may take, by the name of their function."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, Any] = {}

    def map(self, function: Any, units: Sequence[Any], **how: Any) -> Iterator[Outcome[Any]]:
        self.limits.setdefault(getattr(function, "__name__", "a unit"), how["timeout_s"])
        return super().map(function, units, **how)


def flac(path: Path, told_samples: int | None = None) -> Path:
    """A second of sound, whose header tells another length."""
    write_sound(path, 0.1 * np.ones((1, RATE_HZ), np.float32), RATE_HZ, codec="flac", container="flac")
    if told_samples is not None:
        data = bytearray(path.read_bytes())
        number = int.from_bytes(data[18:26], "big")
        data[18:26] = (number >> 36 << 36 | told_samples).to_bytes(8, "big")
        path.write_bytes(data)
    return path


@pytest.fixture
def landing(tmp_path: Path) -> Store:
    folder = tmp_path / "landing"
    folder.mkdir()
    return open_store(str(folder))


def audit_batch(landing: Store, compute: Compute) -> AuditBatch:
    return AuditBatch(
        root=landing,
        landing=landing,
        compute=compute,
        spec=SPEC,
        partition="b",
        fingerprint="f",
    )


def landing_rows(landing: Store, *paths: Path) -> list[dict[str, Any]]:
    """Rows as the landing stage makes them."""
    import hashlib

    rows = []
    for path in paths:
        data = path.read_bytes()
        landing.put(path.name, data)
        sha256, mime = hashlib.sha256(data).hexdigest(), sniff(data[:HEAD_BYTES])
        rows.append(
            {
                "key": path.name,
                "sha256": sha256,
                "mime": mime,
                "error_code": "",
                "error_reason": "",
                "label": "",
            }
            | {"nbytes": len(data), "segments": None}
        )
    return rows


def test_what_a_container_tells(landing: Store, tmp_path: Path) -> None:
    path = flac(tmp_path / "ten-hours.flac", 36_000 * RATE_HZ)
    video = encode(tmp_path / "v.mp4", [np.zeros((64, 96, 3), np.uint8)] * 50)
    landing_rows(landing, path, video)
    assert read_header_work((landing, path.name)) == (36_000.0, 0.0, 36_000.0 * RATE_HZ)
    found = read_header_work((landing, video.name))
    assert found is not None
    assert found[:2] == (pytest.approx(2.0), pytest.approx(50 * 64 * 96))
    slow = encode(tmp_path / "slow.mp4", [np.zeros((64, 96, 3), np.uint8)] * 5, codec="libsvtav1", options={})
    landing_rows(landing, slow)
    assert read_header_work((landing, slow.name)) == (pytest.approx(0.2), pytest.approx(2 * 5 * 64 * 96), 0.0)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 5000, b"fLaC" + b"\x00" * 200])
def test_of_what_is_no_container_nothing_is_told(landing: Store, tmp_path: Path, data: bytes) -> None:
    landing.put("x", data)
    assert read_header_work((landing, "x")) is None
    assert read_header_work((landing, "missing")) is None


@pytest.mark.parametrize("container", ["ogg", "mpegts", "adts"])
def test_where_the_length_is_estimated_the_bytes_count(
    landing: Store, tmp_path: Path, container: str
) -> None:
    """A chained Ogg tells the length of its last link."""
    codec = "libopus" if container == "ogg" else "aac"
    path = tmp_path / "x"
    rate_hz = 48_000
    write_sound(path, np.zeros((1, rate_hz), np.float32), rate_hz, codec=codec, container=container)
    landing.put("x", path.read_bytes() * 40)
    found = read_header_work((landing, "x"))
    assert found is not None
    assert found[0] >= landing.head("x").nbytes / 2000


def test_limit_is_the_base_and_what_there_is_to_decode_up_to_the_ceiling() -> None:
    nothing = DecodeWork(duration_s=0, pixels=0, values=0)
    assert nothing.limit_s(100, 5000) == 100
    sound = DecodeWork(duration_s=1, pixels=0, values=50 * VALUES_PER_S)
    assert sound.limit_s(100, 5000) == 150
    assert DecodeWork(duration_s=1, pixels=70 * PIXELS_PER_S, values=0).limit_s(100, 5000) == 170
    assert DecodeWork(duration_s=1, pixels=float("inf"), values=1e300).limit_s(100, 5000) == 5000
    assert sound.limit_s(100, 10) == 100, "the ceiling is of what is added"


def test_audit_has_the_time_that_its_sound_needs(landing: Store, tmp_path: Path) -> None:
    engine, said = Told(), []
    n_samples = 36_000 * RATE_HZ
    rows = landing_rows(landing, flac(tmp_path / "long.flac", n_samples), flac(tmp_path / "short.flac"))
    rows += landing_rows(landing, flac(tmp_path / "endless.flac", 2**36 - 1))
    audit_objects(audit_batch(landing, engine), rows, tell=said.append)
    limit_s = 100 + n_samples / VALUES_PER_S
    assert engine.limits["a unit"] == pytest.approx([limit_s, 100 + RATE_HZ / VALUES_PER_S, 5000])
    assert said == [
        f"'long.flac': decoding 36,000 s of sound, limit {limit_s:,.0f} s",
        f"'endless.flac': decoding {(2**36 - 1) / RATE_HZ:,.0f} s of sound, limit 5,000 s",
    ]


def test_cut_is_given_the_time_that_was_decoded(landing: Store, tmp_path: Path) -> None:
    engine, said = Told(), []
    row = {"kind": "audio", "key": "a", "sha256": "0", "mime": "audio/flac", "duration_s": 36_000.0}
    row |= {"n_samples": 36_000 * 44_100, "channels": 2}
    video = {
        "kind": "video",
        "key": "v",
        "sha256": "1",
        "mime": "video/mp4",
        "duration_s": 300.0,
        "codec": "libdav1d",
    }
    video |= {"n_frames_decoded": 9000, "width_px": 1920, "height_px": 1080}
    photo = {
        "kind": "image",
        "key": "p",
        "sha256": "2",
        "mime": "image/png",
        "width_px": 100_000,
        "height_px": 9,
    }
    rows = [row, video, photo]
    batch = open_batch(loader.Root(str(tmp_path / "landing")), landing, SPEC, rows, engine)
    assert len(cut_objects(batch, rows, labels=[""], tell=said.append).refusals) == 3
    assert engine.limits["a unit"] == pytest.approx([100 + 3175.2, 5000, 100])
    assert said == [
        "'a': decoding 36,000 s of sound, limit 3,275 s",
        "'v': decoding 300 s of video, limit 5,000 s",
    ]


def test_what_is_cut_gets_as_much_time_as_what_is_audited(landing: Store, tmp_path: Path) -> None:
    """Of a file that tells the truth."""
    rows = landing_rows(landing, flac(tmp_path / "a.flac"))
    told = container_limits(landing, InlineCompute(), rows, SPEC, lambda _: None)
    admitted, _ = audit_objects(audit_batch(landing, InlineCompute()), rows)
    decoded = media_row_limits(admitted, SPEC, lambda _: None)
    assert decoded == told
    assert media_work(admitted[0]).values == RATE_HZ


def test_object_that_takes_longer_is_refused_with_its_length(landing: Store, tmp_path: Path) -> None:
    """The ceiling holds, whatever a header tells: this one's audit is given less time than any takes."""
    spec = DatasetSpec(name="demo", work_timeout_s=30.0, max_work_timeout_s=30.0)
    rows = landing_rows(landing, flac(tmp_path / "a.flac", 10 * RATE_HZ))
    engine = LocalCompute(1)
    try:
        limits = container_limits(landing, engine, rows, spec, lambda _: None)
        (outcome,) = engine.map(_hang, [1], timeout_s=0.2)
        assert outcome.error is not None
        reason = limits[0].reason(outcome.error)
    finally:
        engine.close()
    assert "decoding 10 s of sound" in reason
    assert "max_work_timeout_s" in reason


def _hang(_: int) -> None:
    import time

    time.sleep(100)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_ceiling_is_above_nothing(seconds: float) -> None:
    with refusal(InvalidSpec, what="max_work_timeout_s", given=seconds):
        DatasetSpec(name="demo", max_work_timeout_s=seconds)
