"""One raw object, worked on where no other is harmed: fetched to scratch, checked, and audited or cut.

Both functions are at module level, take values that pickle and give plain ones. So a compute engine can run them in a
process of its own, which is where decoders are imported. A fault of the object comes back as a refusal row; a fault of
this machine (a full disk) is raised.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loader.errors import StoreError, Throttled, Transient
from loader.storage import Store

from .cutters import CUTTERS, MEDIA_KINDS, kind_of
from .known_facts import ClipStaging, Known
from .media_table import Row
from .policy import CutPolicy
from .scratch import check_scratch, scratch_error
from .segments.read import Segment
from .unit import Kind, Unit, Unusable, rejected

_CHUNK_BYTES = 2**20
_NOT_THE_OBJECTS_FAULT = (Throttled, Transient)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """One object to be audited."""

    store: Store
    """Store of the object."""
    key: str
    """Key of the object, as it landed."""
    sha256: str
    """Sha256 hex of the object, as it landed."""
    mime: str
    """MIME type of the object, as it landed."""
    scratch: str
    """Folder of this object's own, made when it is not there."""
    kinds: tuple[Kind, ...] = MEDIA_KINDS
    """Kinds of media that the dataset takes."""
    policy: CutPolicy = field(default_factory=CutPolicy)
    """Cut policy, also for HDR and deep colour."""
    segments: tuple[Segment, ...] = ()
    """Given segments; empty for none."""
    staging: ClipStaging | None = None
    """Place for clips that can be made on the way; None for nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """Result of an audit: exactly one of `row`, `refusal` and `fault`."""

    key: str
    """Key of the object."""
    row: Row | None = None
    """Row of the `media` table; None for none."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table; None for none."""
    fault: str = ""
    """Fault of this machine or the store, not of the object; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """One object to be cut."""

    store: Store
    """Store of the object."""
    key: str
    """Key of the object, as it landed."""
    sha256: str
    """Sha256 hex of the object, as it landed."""
    mime: str
    """MIME type of the object, as it landed."""
    scratch: str
    """Folder of this object's own, made when it is not there."""
    policy: CutPolicy
    """Cut policy."""
    kinds: tuple[Kind, ...] = MEDIA_KINDS
    """Kinds of media that the dataset takes."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """Row of the object in the media table."""
    segments: tuple[Segment, ...] = ()
    """Given segments; empty for none."""
    staging: ClipStaging | None = None
    """Place where clips of it may wait; None for nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult:
    """Result of cutting one object."""

    key: str
    """Key of the object."""
    kind: Kind | None = None
    """Kind of media; None where it is not known."""
    units: tuple[Unit, ...] = field(default=())
    """Units with their files in the request's scratch folder, which the caller deletes; empty when refused or at a
    fault."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table; None for none."""
    fault: str = ""
    """Fault of this machine or the store; "" for none."""


def audit_object(request: AuditRequest) -> AuditResult:
    """Audit one object; its scratch folder is left empty."""
    from .audit import audit
    from .clips.audit_and_cut import Ahead, put_clips

    scratch = Path(request.scratch)

    def work(path: str) -> AuditResult:
        ahead = None
        if request.staging is not None:
            ahead = Ahead(request.policy.video, request.segments, scratch)
        row = audit(path, request.mime, request.kinds, request.policy, ahead)
        if ahead is not None and request.staging is not None and any(ahead.clips):
            put_clips(request.staging, ahead.clips, ahead.extent, scratch)
        return AuditResult(key=request.key, row={**row, "key": request.key, "sha256": request.sha256})

    try:
        return _on_local_copy(request, work)
    except Unusable as unusable:
        return AuditResult(key=request.key, refusal=refusal_row(request.key, request.sha256, unusable))
    except StoreError as error:
        return AuditResult(key=request.key, fault=f"{type(error).__name__}: {error}")
    finally:
        for file in scratch.glob("clip-*"):
            file.unlink()


def cut_object(request: CutRequest) -> CutResult:
    """Cut one object and compare the units with it. An object that is refused, or meets a fault, leaves no file."""
    from .cut_audit.units import audit_units

    scratch = Path(request.scratch)

    def work(path: str) -> CutResult:
        kind = kind_of(path, request.mime, request.kinds)
        known = Known(audit=request.audit, segments=request.segments, staging=request.staging)
        units = CUTTERS[kind].cut(path, scratch, request.policy, known)
        audit_units(path, kind, units, request.audit)
        return CutResult(key=request.key, kind=kind, units=tuple(units))

    try:
        return _on_local_copy(request, work)
    except Unusable as unusable:
        shutil.rmtree(scratch, ignore_errors=True)
        return CutResult(key=request.key, refusal=refusal_row(request.key, request.sha256, unusable))
    except StoreError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        return CutResult(key=request.key, fault=f"{type(error).__name__}: {error}")


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


def _on_local_copy(request: AuditRequest | CutRequest, work: Callable[[str], Result]) -> Result:
    """Fetch, work, and delete the copy whatever happens. Raises: Unusable; StoreError."""
    scratch = Path(request.scratch)
    raw = scratch / "raw.bin"  # never the object's name: it may be '..', or longer than a file name may be
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
            raise  # decoders' own are refusals by now
    finally:
        with contextlib.suppress(OSError):  # it may never have come to be
            raw.unlink()


def _fetch(request: AuditRequest | CutRequest, write: Callable[[bytes], object]) -> None:
    """Copy the object; it must be the bytes that landed.

    Raises: Unusable; OSError of the scratch disk; Throttled, Transient when the store does not answer.
    """
    digest = hashlib.sha256()
    try:
        stream = request.store.open_stream(request.key)
    except _NOT_THE_OBJECTS_FAULT:
        raise
    except StoreError as error:
        raise rejected("fetch", type(error).__name__, error) from error
    with stream:
        while chunk := _read(stream):
            digest.update(chunk)
            write(chunk)
    if digest.hexdigest() != request.sha256:
        raise rejected("fetch", "Changed", "the object is not the one that landed; land the batch again")


def _read(stream: Any) -> bytes:
    try:
        data: bytes = stream.read(_CHUNK_BYTES)
    except _NOT_THE_OBJECTS_FAULT:
        raise
    except StoreError as error:
        raise rejected("fetch", type(error).__name__, error) from error
    return data
