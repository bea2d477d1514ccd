"""Process one raw object in isolation, by picklable requests: fetch it to scratch, verify it, and audit or cut it."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loader.errors import StoreError
from loader.modalities.fields import is_ours
from loader.storage import Store
from penstock.compute.pool import is_fault

from .container import check_scratch, scratch_error
from .cutters import CUTTERS, MEDIA_KINDS, ClipStaging, Known, file_kind
from .media_table import Row
from .policy import CutPolicy
from .segments import Segment
from .unit import Kind, Unit, Unusable, rejected

_CHUNK_BYTES = 2**20
_OF_A_BUG = (TypeError, AttributeError, NameError)
"""Errors that are bugs if this project's own code raises them; libraries raise them for damaged files, too."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Object to audit."""

    store: Store
    """Store of the object."""
    key: str
    """Key of the object."""
    sha256: str
    """SHA-256 in hex at landing."""
    mime: str
    """MIME type by content."""
    scratch: str
    """Scratch folder, created if missing."""
    kinds: tuple[Kind, ...] = MEDIA_KINDS
    """Kinds that the dataset accepts."""
    policy: CutPolicy = field(default_factory=CutPolicy)
    segments: tuple[Segment, ...] = ()
    """Given segments of the object."""
    staging: ClipStaging | None = None
    """Staging for early clips; None to cut none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """Result of an audit: exactly one of `row`, `refusal` and `fault`."""

    key: str
    """Key of the object."""
    row: Row | None = None
    """Row of the media table."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table."""
    fault: str = ""
    """Fault of machine or store, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest(AuditRequest):
    """Object to cut."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    """Row of the media table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult:
    """Result of cutting one object."""

    key: str
    """Key of the object."""
    kind: Kind | None = None
    """Kind of media; None if unknown."""
    units: tuple[Unit, ...] = field(default=())
    """The caller deletes their files; empty after a refusal or fault."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table."""
    fault: str = ""
    """Fault of machine or store, or ""."""


def audit_object(request: AuditRequest) -> AuditResult:
    """Audit one object and delete its scratch copy."""
    from .audit import audit
    from .clips.early_clips import EarlyClips, put_clips

    scratch = Path(request.scratch)

    def work(path: str) -> AuditResult:
        early = None
        if request.staging is not None:
            early = EarlyClips(request.policy.video, request.segments, scratch)
        row = audit(path, request.mime, request.kinds, request.policy, early)
        if early is not None and request.staging is not None and any(early.clips):
            put_clips(request.staging, early.clips, early.extent, scratch)
        return AuditResult(key=request.key, row={**row, "key": request.key, "sha256": request.sha256})

    try:
        return _on_local_copy(request, work)
    except Unusable as unusable:
        return AuditResult(key=request.key, refusal=refusal_row(request.key, request.sha256, unusable))
    except Exception as error:
        if not _is_no_verdict(error):
            raise
        return AuditResult(key=request.key, fault=f"{type(error).__name__}: {error}")
    finally:
        for file in scratch.glob("clip-*"):
            file.unlink()


def cut_object(request: CutRequest) -> CutResult:
    """Cut one object and audit its units. A refusal or fault leaves no file."""
    from .audit import audit_units

    scratch = Path(request.scratch)

    def work(path: str) -> CutResult:
        kind = file_kind(path, request.mime, request.kinds)
        known = Known(
            audit=request.audit,
            segments=request.segments,
            staging=request.staging,
        )
        units = CUTTERS[kind].cut(path, scratch, request.policy, known)
        audit_units(path, kind, units, request.audit)
        return CutResult(key=request.key, kind=kind, units=tuple(units))

    try:
        return _on_local_copy(request, work)
    except Unusable as unusable:
        shutil.rmtree(scratch, ignore_errors=True)
        return CutResult(key=request.key, refusal=refusal_row(request.key, request.sha256, unusable))
    except Exception as error:
        if not _is_no_verdict(error):
            raise
        shutil.rmtree(scratch, ignore_errors=True)
        return CutResult(key=request.key, fault=f"{type(error).__name__}: {error}")


def _is_no_verdict(error: Exception) -> bool:
    """Return whether an error is a fault of store, machine or penstock, and shows nothing about the object."""
    if isinstance(error, StoreError) or is_fault(error):
        return True
    return isinstance(error, _OF_A_BUG) and is_ours(error)


def refusal_row(key: str, sha256: str, unusable: Unusable) -> dict[str, Any]:
    """Return a row of the `refusals` table."""
    return {
        "key": key,
        "sha256": sha256,
        "outcome": unusable.outcome,
        "stage": unusable.stage,
        "code": unusable.code,
        "reason": unusable.reason,
        "decode_error_at_frame": unusable.at_frame,
    }


def _on_local_copy(request: AuditRequest, work: Callable[[str], Result]) -> Result:
    """Return the work's result on a copy of the object in scratch, which is deleted then."""
    scratch = Path(request.scratch)
    raw = scratch / "raw.bin"  # not the object's name, which may be '..' or too long
    try:
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            with open(raw, "wb") as copy:
                _fetch(request, copy.write)
        except StoreError:
            raise
        except OSError as error:
            raise scratch_error(error, scratch) from error
        try:
            return work(str(raw))
        except StoreError:
            raise
        except OSError as error:
            check_scratch(error, scratch)
            raise  # a decoder's own errors are refusals by now
    finally:
        with contextlib.suppress(OSError):  # it may not exist
            raw.unlink()


def check_folder(store: Store) -> None:
    """Raise StoreError if a store's folder is gone: what it lacks then was not deleted."""
    if "://" not in store.url and not os.path.isdir(store.url):
        raise StoreError(
            f"the folder {store.url} does not exist: mount its disk, or correct the location, and run the batch again",
            what="folder",
            where=store.url,
        )


def _fetch(request: AuditRequest, write: Callable[[bytes], object]) -> None:
    """Write the object's bytes. Raises: Unusable if it is gone or has changed; StoreError for a fault of the store."""
    digest = hashlib.sha256()
    try:
        with request.store.open_stream(request.key) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                write(chunk)
    except StoreError as error:
        if is_fault(error):
            raise
        check_folder(request.store)
        raise rejected("fetch", type(error).__name__, error) from error
    if digest.hexdigest() != request.sha256:
        raise rejected("fetch", "Changed", "the object is not the one that landed; land the batch again")
