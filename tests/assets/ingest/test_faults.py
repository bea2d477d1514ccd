"""Errors of code, machine and store stop a batch: no stage records them as a verdict, or reuses such a record."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.ingest import media, stored_faults, units
from assets.ingest.raw_objects import land
from assets.media.objects import refusal_row
from assets.media.unit import rejected
from assets.spec import DatasetSpec
from loader.errors import Forbidden, InvalidRuntime, StoreError, WorkerFailed
from loader.storage import Store, open_store
from penstock.compute.pool import InlineCompute, LocalCompute
from penstock.compute.work import Fault
from penstock.stages import current_record
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", max_reject_rate=1.0, max_not_media_rate=1.0)
MakeJpeg = Callable[..., bytes]
OLD_REASON = (
    "loader.errors.InvalidRuntime: work 'assets.ingest.audit_work:AUDIT' cannot be imported here: No module "
    "named 'assets'"
)


@pytest.fixture
def place(tmp_path: Path, make_jpeg: MakeJpeg) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(make_jpeg(40 + number, 30))
    return folder


@pytest.fixture
def batch(root: loader.Root, place: Path) -> str:
    store = open_store(str(place))
    (name,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=name, run_id="r")
    return name


def raising(error: Exception) -> Callable[..., object]:
    def call(*_: object, **__: object) -> object:
        raise error

    return call


ERRORS = [
    ModuleNotFoundError("No module named 'av'"),
    OSError(errno.EMFILE, "Too many open files"),
    PermissionError(errno.EACCES, "Permission denied"),
    Forbidden("the credentials have expired"),
    InvalidRuntime("the node lacks something"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_audit_that_code_or_machine_stops_records_nothing(
    root: loader.Root, place: Path, batch: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assets.media.audit.audit", raising(error))
    with refusal(Fault, what="audit", where="0.jpg") as caught:
        media.media_stage(root, open_store(str(place)), InlineCompute(), SPEC, partition=batch, run_id="r")
    assert str(error.args[-1]) in str(caught.value.given)
    assert "'0.jpg' could not be audited" in str(caught.value)
    assert current_record(root.store, "demo", "media", batch) is None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_cut_that_code_or_machine_stops_records_nothing(
    root: loader.Root, place: Path, batch: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_store(str(place))
    media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    monkeypatch.setattr("assets.media.audit.audit_units", raising(error))
    with refusal(Fault, what="cut", where="0.jpg") as caught:
        units.units_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert str(error.args[-1]) in str(caught.value.given)
    assert current_record(root.store, "demo", "units", batch) is None


def test_bug_of_ours_stops_the_audit_and_a_library_s_error_for_damage_does_not(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_store(str(place))
    monkeypatch.setattr("assets.media.audit.bit_depth", lambda _: None)
    monkeypatch.setattr("assets.media.audit.has_alpha", None)  # as if a function had lost its name
    given = "TypeError: 'NoneType' object is not callable"
    with refusal(Fault, what="audit", where="0.jpg", given=given):
        media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    monkeypatch.setattr("assets.media.audit.has_alpha", lambda _: int("damaged"))
    record, _, refusals = media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert record.verdict == "published"
    assert [row["outcome"] for row in refusals] == ["rejected"] * 3


def test_workers_that_cannot_import_the_pipeline_reject_nothing(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process whose working directory is no longer on its path."""
    checkout = str(Path(media.__file__).parents[2])
    with monkeypatch.context() as patched:
        patched.setattr("penstock.compute.pool.process.import_path", lambda: import_paths(checkout))
        compute = LocalCompute(1)
        try:
            with pytest.raises(WorkerFailed, match="No module named 'assets'"):
                media.media_stage(root, open_store(str(place)), compute, SPEC, partition=batch, run_id="r")
        finally:
            compute.close()
    assert current_record(root.store, "demo", "media", batch) is None


def import_paths(checkout: str) -> list[str]:
    from penstock.compute.pool.import_path import import_path

    return [entry for entry in import_path() if entry != checkout]


def old_audit(*_: object, **__: object) -> tuple[list[object], list[object]]:
    """What an earlier release made of workers without the pipeline's code."""
    refused = rejected("probe", "exception", OLD_REASON)
    return [], [refusal_row(f"{number}.jpg", "0" * 64, refused) for number in range(3)]


def test_stored_verdict_of_a_fault_is_not_reused(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_store(str(place))
    with monkeypatch.context() as patched:
        patched.setattr(media, "audit_objects", old_audit)
        old, _, refusals = media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert (old.verdict, len(refusals)) == ("published", 3)
    for expected_r in (2, 2):  # the healthy verdict is reused
        record, admitted, refusals = media.media_stage(
            root, source, InlineCompute(), SPEC, partition=batch, run_id="r"
        )
        assert (record.r, len(admitted), refusals) == (expected_r, 3, [])


def test_stored_cut_of_a_fault_is_not_reused(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_store(str(place))
    media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    true = units.cut_objects

    def old_cut(*given: object, **more: object) -> object:
        cut = true(*given, **more)  # type: ignore[arg-type]
        lost = rejected("cut", "exception", "OSError: [Errno 28] No space left on device")
        return replace(cut, refusals=[refusal_row("2.jpg", "0" * 64, lost)])

    with monkeypatch.context() as patched:
        patched.setattr(units, "cut_objects", old_cut)
        old, _, refusals = units.units_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert (old.r, len(refusals)) == (1, 1)
    for _ in range(2):
        record, rows, refusals = units.units_stage(
            root, source, InlineCompute(), SPEC, partition=batch, run_id="r"
        )
        assert (record.r, len(rows), refusals) == (2, 3, [])


class Expired:
    """A store whose credentials have expired."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get_range(self, key: str, *_: object, **__: object) -> object:
        raise Forbidden(f"{key}: the token has expired", what="token", where=key)


def test_landing_place_without_rights_lands_nothing(root: loader.Root, place: Path) -> None:
    store = open_store(str(place))
    (name,) = discover(root.store, store, "demo")
    with refusal(Forbidden, what="token", where="0.jpg"):
        land(root.store, Expired(store), dataset="demo", partition=name, run_id="r")  # type: ignore[arg-type]
    assert current_record(root.store, "demo", "raw_objects", name) is None


def test_fetch_without_rights_is_no_damage(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_store(str(place))
    monkeypatch.setattr(type(source), "open_stream", raising(Forbidden("the token has expired")))
    given = "Forbidden: the token has expired"
    with refusal(Fault, what="audit", where="0.jpg", given=given):
        media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert current_record(root.store, "demo", "media", batch) is None


def test_landing_folder_that_is_gone_deletes_and_damages_nothing(
    root: loader.Root, place: Path, batch: str
) -> None:
    """As when its disk is not mounted: no object of it was deleted."""
    source = open_store(str(place))
    place.rename(place.with_name("elsewhere"))
    with refusal(StoreError, what="folder", where=place):
        land(root.store, source, dataset="demo", partition=batch, run_id="r")
    with pytest.raises(StoreError, match="photos does not exist: mount its disk"):
        media.media_stage(root, source, InlineCompute(), SPEC, partition=batch, run_id="r")
    landed = current_record(root.store, "demo", "raw_objects", batch)
    assert landed is not None
    assert landed.r == 1
    assert current_record(root.store, "demo", "media", batch) is None


def test_disk_that_fails_under_a_decoder_is_no_damage(
    root: loader.Root, place: Path, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = raising(OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr("assets.media.image.open._check_parts", failing)
    given = "OSError: [Errno 5] Input/output error"
    with refusal(Fault, what="audit", where="0.jpg", given=given):
        media.media_stage(root, open_store(str(place)), InlineCompute(), SPEC, partition=batch, run_id="r")
    assert current_record(root.store, "demo", "media", batch) is None


@pytest.mark.parametrize(
    ("code", "reason", "is_fault", "is_feature_fault"),
    [
        ("exception", OLD_REASON, True, True),
        ("exception", f"the same bytes as 'a: b.jpg': {OLD_REASON}", True, True),
        ("exception", "ModuleNotFoundError: No module named '_colour'", True, True),
        ("exception", "OSError: [Errno 28] No space left on device", True, True),
        ("exception", "TypeError: unsupported operand", False, True),
        ("exception", "AttributeError: module '_colour' has no attribute 'x'", False, True),
        ("exception", "ValueError: ImportError: in the data", False, False),
        ("exception", "FileNotFoundError: [Errno 2] No such file or directory", False, False),
        ("exception", "av.error.PermissionError: [Errno 1] Operation not permitted", False, False),
        ("Forbidden", "the credentials do not allow it", True, True),
        ("not_supported", "HEIC needs a decoder: pip install pi-heif, and run the batch again", True, True),
        ("not_supported", "HDR is not supported", False, False),
        ("crashed", "its process was killed by SIGSEGV", False, False),
        ("timeout", "took longer than 600 s and was killed", False, False),
        ("undecodable", "ImportError: in a file's own text", False, False),
        ("", "", False, False),
    ],
)
def test_stored_faults_are_known_by_code_and_reason(
    code: str, reason: str, is_fault: bool, is_feature_fault: bool
) -> None:
    assert stored_faults.is_stored_fault(code, reason) is is_fault
    assert stored_faults.is_stored_feature_fault(code, reason) is is_feature_fault
    assert stored_faults.is_faulty_exclusion(f"mean_colour: {code}: {reason}") is is_feature_fault
