"""What a pipeline's worker does with one video: audit and cut. In a module of its own, for workers to import."""

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.media.cutters import ClipStaging
from assets.media.objects import AuditRequest, CutRequest, audit_object, cut_object
from assets.media.policy import CutPolicy
from loader.storage import open_store


def requests(folder: Path, video: Path, policy: CutPolicy, name: str) -> tuple[AuditRequest, CutRequest]:
    """Both stages' work on one object."""
    place = open_store(str(video.parent))
    common: dict[str, Any] = {
        "store": place,
        "key": video.name,
        "sha256": hashlib.sha256(video.read_bytes()).hexdigest(),
        "mime": "video/mp4",
        "policy": policy,
        "staging": ClipStaging(store=open_store(str(folder / "root")), key=f"ahead/{name}"),
    }
    audit = AuditRequest(**common, scratch=str(folder / f"audit-{name}"))
    return audit, CutRequest(**common, scratch=str(folder / f"cut-{name}"))


def ingest(audit: AuditRequest, cut: CutRequest) -> int:
    """Number of clips."""
    found = audit_object(audit)
    if found.row is None:
        raise SystemExit(f"the video is not taken: {found.refusal or found.fault}")
    result = cut_object(replace(cut, audit=found.row))
    if not result.units:
        raise SystemExit(f"the video is not cut: {result.refusal or result.fault}")
    return len(result.units)


def warm(number: int) -> int:
    """What a worker imports before its first unit."""
    time.sleep(0.2)
    return number


def ingest_in_worker(work: tuple[AuditRequest, CutRequest]) -> int:
    """MiB that this worker has held at most."""
    ingest(*work)
    status = Path(
        "/proc/self/status"
    ).read_text()  # ru_maxrss would begin with that of the process that forked
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024
