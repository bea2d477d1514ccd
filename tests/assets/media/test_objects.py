import errno
import hashlib
import pickle
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from assets.media.container import check_scratch
from assets.media.cutters import ALL_KINDS
from assets.media.media_table import MEDIA
from assets.media.objects import AuditRequest, CutRequest, audit_object, cut_object
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import dropped, rejected
from loader.errors import StoreError
from loader.storage import open_store
from tests.refusals import refusal

MakeFrames = Callable[..., list[np.ndarray]]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=2.0))


def request(landing: Path, key: str, scratch: Path, data: bytes | None = None) -> CutRequest:
    data = (landing / key).read_bytes() if data is None else data
    return CutRequest(
        store=open_store(str(landing)),
        key=key,
        sha256=hashlib.sha256(data).hexdigest(),
        mime=sniff(data[:HEAD_BYTES]),
        scratch=str(scratch),
        policy=POLICY,
        kinds=ALL_KINDS,
    )


def audit_request(cut: CutRequest) -> AuditRequest:
    names = ("store", "key", "sha256", "mime", "scratch", "kinds")
    return AuditRequest(**{name: getattr(cut, name) for name in names})


@pytest.mark.parametrize(
    ("key", "kind", "n_units"),
    [
        ("photos/dogs/狗.jpg", "image", 1),
        ("videos/clip.mp4", "video", 2),
        ("speech/tone.wav", "audio", 1),
        ("readme.txt", "text", 1),
    ],
)
def test_every_kind_in_another_process(
    landing: Path, tmp_path: Path, key: str, kind: str, n_units: int
) -> None:
    ask = request(landing, key, tmp_path / "new" / "scratch")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        told = pool.submit(audit_object, audit_request(ask)).result()
        assert list(tmp_path.rglob("scratch/*")) == []  # an audit leaves nothing
        cut = pool.submit(cut_object, ask).result()
    assert told.refusal is None
    assert told.row is not None
    assert set(told.row) == set(MEDIA.names)
    assert (told.row["key"], told.row["kind"], told.row["sha256"]) == (key, kind, ask.sha256)
    assert (cut.kind, len(cut.units), cut.refusal) == (kind, n_units, None)
    files = {value for unit in cut.units for value in unit.fields.values() if isinstance(value, Path)}
    assert files == set((tmp_path / "new" / "scratch").iterdir())  # its files, and no copy of the raw object


def test_bad_object_is_a_row_and_leaves_no_file(landing: Path, tmp_path: Path) -> None:
    whole = (landing / "videos/clip.mp4").read_bytes()
    (landing / "videos/half.mp4").write_bytes(whole[: len(whole) // 2])
    scratch = tmp_path / "scratch"
    ask = request(landing, "videos/half.mp4", scratch)
    expected = {
        "key": "videos/half.mp4",
        "sha256": ask.sha256,
        "outcome": "rejected",
        "stage": "probe",
        "code": "truncated",
        "decode_error_at_frame": None,
    }
    for result in (audit_object(audit_request(ask)), cut_object(ask)):
        assert result.refusal is not None
        assert result.refusal.pop("reason")
        assert result.refusal == expected
        assert not scratch.exists() or not list(scratch.iterdir())


def test_object_that_changed_or_went(landing: Path, tmp_path: Path) -> None:
    ask = request(landing, "speech/tone.wav", tmp_path / "a", b"what landed")
    result = cut_object(ask)
    assert result.refusal is not None
    assert (result.refusal["stage"], result.refusal["code"]) == ("fetch", "Changed")
    (landing / "speech/tone.wav").unlink()
    gone = audit_object(audit_request(ask))
    assert gone.refusal is not None
    assert (gone.refusal["stage"], gone.refusal["code"]) == ("fetch", "ObjectNotFound")


def test_scratch_that_cannot_be_written_is_no_fault_of_the_object(landing: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = cut_object(request(landing, "speech/tone.wav", tmp_path / "file" / "scratch"))
    assert result.refusal is None
    assert "Set TMPDIR" in result.fault
    with refusal(StoreError, what="temporary space", where=tmp_path, given="No space left on device"):
        check_scratch(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    check_scratch(OSError(errno.EINVAL, "Invalid argument"), tmp_path)  # the media's


@pytest.mark.parametrize("room", [-1000, 1000])
def test_full_disk_is_no_fault_of_the_object(
    landing: Path, tmp_path: Path, room: int, encode_video: Callable[..., str], noise_frames: MakeFrames
) -> None:
    # The kernel lets no file grow above a size, which is the same path through the code as a full disk. There is
    # room for the raw object or not, but none for the clips, which are of a higher quality.
    path = encode_video(noise_frames(50), options={"crf": "40"})
    data = Path(path).read_bytes()
    (landing / "noise").write_bytes(data)
    ask = request(landing, "noise", tmp_path / "scratch")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) + room, old[1]))
    try:
        result = cut_object(ask)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (result.refusal, result.units) == (None, ())
    assert "Set TMPDIR" in result.fault
    assert not (tmp_path / "scratch").exists()


def test_refusal_pickles_whole() -> None:
    whole = pickle.loads(pickle.dumps(rejected("decode", "corrupt", "x", at_frame=7)))  # noqa: S301
    assert (whole.at_frame, str(whole)) == (7, "x")
    again = pickle.loads(pickle.dumps(dropped("probe", "hdr", "HDR")))  # noqa: S301
    assert (again.outcome, again.stage, again.code, again.reason, str(again)) == (
        "dropped", "probe", "hdr", "HDR", "HDR",
    )  # fmt: skip
