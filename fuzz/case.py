"""One damaged file: audited, cut, decoded, and checked for leaks. Runs in a worker process."""

import contextlib
import gc
import hashlib
import os
import random
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import loader
from assets.media.cutters import ALL_KINDS, ClipStaging
from assets.media.objects import AuditRequest, AuditResult, CutRequest, CutResult, audit_object, cut_object
from assets.media.policy import CutPolicy, ImagePolicy, VideoPolicy
from assets.media.sniff import HEAD_BYTES, sniff
from loader.errors import DecodeFailed, FormatTooNew
from loader.modalities import decoder_extensions, find_decoder
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.storage import open_store

from .mutations import damaged
from .plausible import implausible

_SMALL: dict[str, Any] = {"short_side_px": 64, "clip_s": 0.4, "min_clip_s": 0.1, "max_clips": 2}
POLICIES = tuple(
    CutPolicy(image=ImagePolicy(short_side_px=64), video=VideoPolicy(**_SMALL, **more))
    for more in (
        {},
        {"units": "shots"},
        {"mode": "reference", "max_overhead_ratio": 4.0},
        {"hdr": "tonemap", "deep": "reduce"},
    )
)
_WRONG_NAMES = ("", ".mp4", ".jpg", ".wav", ".PNG", ".txt", ".mkv", ".mp4.gz", " ü狗")
_OWN_SHARE = 0.6  # share of cases that start from a generated file, if there is also a corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """number, seed: decide the damage; own, corpus: files to choose from; data: the damaged bytes of a replayed
    case."""

    number: int
    seed: int
    own: Sequence[str] = ()
    corpus: Sequence[str] = ()
    data: bytes | None = None
    peers: bool = False

    def build(self) -> tuple[str, bytes, tuple[str, ...]]:
        """Return (source file, damaged bytes, names of the mutations). Depends only on the fields."""
        if self.data is not None:
            return "replayed", self.data, ()
        rng = random.Random(f"{self.seed}/{self.number}")
        files = self.own if not self.corpus or rng.random() < _OWN_SHARE else self.corpus
        source, other = rng.choice(files), rng.choice([*self.own, *self.corpus])
        data, done = damaged(Path(source).read_bytes(), rng, Path(other).read_bytes())
        return Path(source).name, data, done

    def again(self, saved: Path) -> str:
        """Return the arguments of `python -m fuzz` that repeat the case, whose bytes are in `saved`."""
        return f"--replay {saved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a case. outcome: admitted, rejected, dropped or fault. cut: the cutter's outcome, "" if it did not
    run."""

    number: int
    source: str
    damage: tuple[str, ...]
    nbytes: int
    outcome: str
    stage: str = ""
    code: str = ""
    reason: str = ""
    kind: str = ""
    cut: str = ""
    cut_code: str = ""
    n_units: int = 0
    decoded: str = ""
    peer: str = ""
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss_mib: float = 0.0


def run_case(case: Case) -> Report:
    """Run an object with these bytes through every step. Raises whatever penstock's code raises."""
    source, data, done = case.build()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    before = begin_case()
    begun = time.perf_counter()
    broken: list[str] = []
    try:
        peer = ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", RuntimeWarning)
            audit, cut = _through(case, data, folder, broken)
            decoded = _decode(case, data, source, broken)
        broken += [f"{one.filename}:{one.lineno} {one.message}" for one in _numeric(warned)]
        if audit.row is not None and case.peers:
            from .plausible import contradictions

            differences = contradictions(data, audit.row, folder)
            peer = "silent" if differences is None else "contradicts" if differences else "agrees"
            broken += differences or []
        broken += left_behind(folder, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    refusal = audit.refusal or {}
    return Report(
        number=case.number,
        source=source,
        damage=done,
        nbytes=len(data),
        outcome="admitted" if audit.row is not None else refusal.get("outcome", "fault"),
        stage=refusal.get("stage", ""),
        code=refusal.get("code", ""),
        reason=refusal.get("reason", audit.fault),
        kind=audit.row["kind"] if audit.row is not None else "",
        cut="" if cut is None else "fault" if cut.fault else (cut.refusal or {}).get("outcome", "cut"),
        cut_code="" if cut is None or cut.refusal is None else cut.refusal["code"],
        n_units=0 if cut is None else len(cut.units),
        decoded=decoded,
        peer=peer,
        broken=broken,
        seconds=time.perf_counter() - begun,
        peak_rss_mib=peak_mib(),
    )


def _through(
    case: Case, data: bytes, folder: Path, broken: list[str]
) -> tuple[AuditResult, CutResult | None]:
    rng = random.Random(case.number)
    key = f"media/{case.number}{rng.choice(_WRONG_NAMES)}"
    landing = folder / "landing"
    store = open_store(str(landing))
    store.put(key, data)
    common: dict[str, Any] = {
        "store": store,
        "key": key,
        "sha256": hashlib.sha256(data).hexdigest(),
        "mime": sniff(data[:HEAD_BYTES]),
        "scratch": str(folder / "scratch"),
        "kinds": ALL_KINDS,
        "policy": rng.choice(POLICIES),
        "staging": rng.choice([None, ClipStaging(store=open_store(str(folder / "staging")), key="clips")]),
    }
    audit = audit_object(AuditRequest(**common))
    n_results = (audit.row is not None) + (audit.refusal is not None) + bool(audit.fault)
    if n_results != 1:
        broken.append(f"{n_results} of row, refusal and fault")
    if audit.fault:
        broken.append(f"the machine is blamed: {audit.fault}")
    if audit.refusal is not None and not (audit.refusal["code"] and audit.refusal["reason"]):
        broken.append("refused without a reason")
    if _files(folder / "scratch"):
        broken.append(f"the audit left {_files(folder / 'scratch')}")
    if audit.row is None:
        return audit, None
    cut = cut_object(CutRequest(**common, audit=audit.row))
    if cut.fault:
        broken.append(f"the machine is blamed by the cutter: {cut.fault}")
    if cut.refusal is not None or cut.fault:
        if cut.units:
            broken.append("refused, and units all the same")
        if (folder / "scratch").exists():
            broken.append(f"the cutter left {_files(folder / 'scratch')}")
    broken += implausible(audit.row, cut.units, folder / "scratch")
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    return audit, cut


def _decode(case: Case, data: bytes, source: str, broken: list[str]) -> str:
    """Decode the raw bytes with the readers for this extension and another, a random video crop, and the packet
    tables."""
    rng = random.Random(case.number)
    own = source.rpartition(".")[2].lower()
    words = {own if own in decoder_extensions() else "mp4", rng.choice(decoder_extensions())}
    readers: dict[str, Callable[[], object]] = {
        word: partial(find_decoder(f"x.{word}"), data, None) for word in sorted(words)
    }
    place = np.random.default_rng(case.number)
    readers["drawn"] = partial(loader.video(frames=2, size=(16, 24), crop="random"), data, place)
    readers["packets"] = partial(_packets, data, rng)
    results = []
    for word, read in readers.items():
        try:
            read()
            results.append(f"{word}: decoded")
        except (DecodeFailed, FormatTooNew) as error:
            results.append(f"{word}: refused")
            if not str(error):
                broken.append(f"the decoder of {word} gives no reason")
    return ", ".join(results)


def _packets(data: bytes, rng: random.Random) -> None:
    table = index_packets(data)
    read_packets(table)
    read_packets(damaged(table, rng, data)[0])


def _numeric(warned: Iterable[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [one for one in warned if issubclass(one.category, RuntimeWarning)]


def begin_case() -> tuple[int, int]:
    """Reset this process's peak memory; return the `held` counts.

    Existing objects are frozen, so that garbage collection at the end of a case skips them. This saves a tenth of a
    second.
    """
    gc.freeze()
    Path("/proc/self/clear_refs").write_text("5")
    return held()


def peak_mib() -> float:
    """Return the peak resident memory since `begin_case`. (`ru_maxrss` starts at the parent process's value.)"""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def held() -> tuple[int, int]:
    """Return (threads, child processes)."""
    return threading.active_count(), len(children())


def left_behind(folder: Path, before: tuple[int, int]) -> list[str]:
    gc.collect()
    leaks = []
    threads, children = held()
    if threads > before[0]:
        leaks.append(f"{threads - before[0]} threads are left: {[one.name for one in threading.enumerate()]}")
    if children > before[1]:
        leaks.append(f"{children - before[1]} processes are left")
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this listing itself
            continue
        if target.startswith(str(folder)):
            leaks.append(f"{target} is still open")
    return leaks


def children() -> list[str]:
    """Return the ids of this process's children."""
    ids: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
            ids += (task / "children").read_text().split()
    return ids


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []
