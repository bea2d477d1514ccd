"""Find live clients by their signs: values that change while a client lives.

A sign is a heartbeat's or lease's counter, or the state of a job folder or unfinished file. The collector of each
machine records how long each sign has been silent, that is, unchanged (docs/format.md):

    collect/<name>/signs.json      {"at_us", "checksum", "format", "run", "run_us", "signs": {key: [sign, silent_us]}}

Within one boot, time is measured from the boot; otherwise only wall clocks are comparable, so the caller caps
such intervals.
"""

import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from loader.dataset.log.entries import DAMAGED, canonical, entry_checksum
from loader.dataset.log.heartbeats import read_heartbeat
from loader.dataset.log.leases import FOLDER as LEASES
from loader.dataset.log.leases import LeaseRecord, Leases
from loader.dataset.log.marker import FOLDERS as ROOT_FOLDERS
from loader.dataset.log.state import State
from loader.errors import FormatTooNew, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.disk.store import LocalStore
from loader.storage.disk.unlisted_files import is_unfinished, list_in_place
from loader.storage.store import TEMPORARY, UNFINISHED, ObjectInfo
from loader.storage.threads import DaemonPool

SLACK_US = 1_000_000
"""Largest backward step of a wall clock that is ignored, in microseconds."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time on two clocks."""

    at_us: int
    """Wall clock, UTC microseconds since 1970."""
    run: str = ""
    """Id of the machine's boot or of the process, or ""."""
    run_us: int = 0
    """Microseconds on that run's clock."""

    def to_json(self) -> dict[str, object]:
        """Return the moment as stored."""
        return {"at_us": self.at_us, "run": self.run, "run_us": self.run_us}

    @staticmethod
    def from_json(body: Mapping[str, object]) -> "Moment":
        """Return a stored moment. Earlier releases stored only the wall clock. Raises: KeyError; ValueError."""
        return Moment(
            at_us=int(str(body["at_us"])),
            run=str(body.get("run", "")),
            run_us=int(str(body.get("run_us", 0))),
        )


def now() -> Moment:
    """Return the current moment. `run` is the boot on Linux, sleep included, else this process."""
    at_us = time.time_ns() // 1000
    if boot := _boot():
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return Moment(at_us=at_us, run=boot, run_us=boot_ns // 1000)
    process_ns = time.monotonic_ns()
    return Moment(at_us=at_us, run=_process(), run_us=process_ns // 1000)


def passed(before: Moment | None, now: Moment, most_us: int) -> int | None:
    """Return the microseconds between two collector passes. most_us: limit if only wall clocks are comparable.

    None in a first pass, or if a wall clock went back: earlier observations are then discarded.
    """
    if before is None:
        return None
    # One run's clock, which no time server sets back.
    if before.run and before.run == now.run:
        return max(now.run_us - before.run_us, 0)  # negative if the machine was restored to an earlier state
    wall_us = now.at_us - before.at_us
    if wall_us < -SLACK_US:
        logger.warning("the clock is %d s behind the last pass: all grace periods restart", -wall_us // 10**6)
        return None
    if wall_us > most_us:
        logger.warning(
            "%d s since the last look, by wall clocks of two runs of a machine, or of two machines: %d s of it count",
            wall_us // 10**6,
            most_us // 10**6,
        )
    return min(max(wall_us, 0), most_us)


def earliest_us(before: Moment | None, now: Moment) -> int:
    """Return the earlier of the wall clock and the last pass's time plus the time since.

    So a clock that was set forward meanwhile makes nothing older.
    """
    if before is None or not before.run or before.run != now.run:
        return now.at_us  # another boot or process: its clock does not go on from the last pass
    since_us = max(now.run_us - before.run_us, 0)
    return min(now.at_us, before.at_us + since_us)


@cache
def _boot() -> str:
    try:
        # With the time namespace: a container's boot clock may have an offset.
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


@cache
def _process() -> str:
    # Not the process's number, which another process may have later.
    return f"process-{secrets.token_hex(8)}"


FORMAT = 1
JOBS = "jobs/"
JOB_SILENCE_US = 14 * 24 * 3_600_000_000
"""Microseconds without a change after which a job's folder counts as dead."""
FOLDER = "collect/"
FOLDERS = (TEMPORARY, *(folder for folder in ROOT_FOLDERS if folder != "data/"))
"""All prefixes in a root except `data/`, sorted."""
_UNFINISHED = re.compile(rf"(.+/)?{UNFINISHED}", re.DOTALL)
_JOB = re.compile(r"jobs/[0-9a-f]{32}/")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Sign = str
"""A sign's value, such as counter and holder; "" for none."""


def own_name() -> str:
    """Return the default name for this machine's collector."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60].strip("-.") or "host"


def check_name(name: str) -> str:
    """Return the collector name if it is valid. Raises: InvalidName."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot name a collector: 1 to 100 of A-Z a-z 0-9 . _ -, the first no sign",
            what="name of a collector",
            given=name,
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """The signs seen in one collector pass."""

    at: Moment | None = None
    """Time of the pass; None before the first."""
    states: Mapping[str, tuple[Sign, int]] = field(default_factory=dict)
    """Key -> (sign, microseconds for which it has been unchanged)."""

    def silent_us(self, key: str) -> int:
        """Return how long a sign has been unchanged, in microseconds; 0 for a new one."""
        return self.states[key][1] if key in self.states else 0

    def after(self, now: Mapping[str, Sign], at: Moment, most_us: int) -> "Signs":
        """Return the signs after another pass. now: key -> sign. most_us: as for `passed`."""
        step = passed(self.at, at, most_us)
        silent = {
            key: self.states[key][1] + step
            if step is not None and key in self.states and self.states[key][0] == sign
            else 0
            for key, sign in now.items()
        }
        return Signs(at=at, states={key: (sign, silent[key]) for key, sign in now.items()})


def read_signs(store: Store, name: str) -> Signs:
    """Return the signs of the last pass; empty if the file is missing or damaged."""
    key = f"{FOLDER}{name}/signs.json"
    try:
        body = parse_json_object(store.get(key).data)
        if body["format"] > FORMAT:
            raise FormatTooNew(
                f"{store.url}/{key} has format {body['format']}; this penstock reads up to {FORMAT}",
                what="format",
                where=f"{store.url}/{key}",
                given=body["format"],
                accepted=FORMAT,
            )
        # Damage must not let a live client seem silent.
        if body.get("checksum") != entry_checksum(body):
            raise ValueError("its checksum does not hold")
        states = {str(sign): (str(what), int(silent)) for sign, (what, silent) in body["signs"].items()}
        return Signs(at=Moment.from_json(body), states=states)
    except ObjectNotFound:
        return Signs()
    except FormatTooNew:
        raise
    # A grace period that restarts only delays deletions.
    except DAMAGED as error:
        logger.warning("%s in %s cannot be read (%s): all grace periods restart", key, store.url, error)
        return Signs()


def write_signs(store: Store, name: str, signs: Signs) -> None:
    states = {key: [sign, silent_us] for key, (sign, silent_us) in signs.states.items()}
    assert signs.at is not None
    body = {"format": FORMAT, **signs.at.to_json(), "signs": states}
    checksum = entry_checksum(body)
    document = {**body, "checksum": checksum}
    store.put(f"{FOLDER}{name}/signs.json", canonical(document))


READ_AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients seen in one collector pass."""

    signs: Signs
    leases: Sequence[LeaseRecord]
    unfinished: Sequence[ObjectInfo]
    """Unfinished files outside `data/`."""
    silence_us: int
    """Microseconds without a change after which a client counts as dead."""

    def is_dead(self, key: str, sign: Sign) -> bool:
        """Return whether this sign has been unchanged for `silence_us`."""
        known = self.signs.states.get(key)
        return known is not None and known[0] == sign and known[1] >= self.silence_us

    def dead_jobs(self) -> set[str]:
        """Return the folders of dead jobs, 'jobs/<id>/'."""
        states = self.signs.states.items()
        return {key for key, (_, us) in states if _JOB.fullmatch(key) and us >= JOB_SILENCE_US}

    def files_of_dead(self) -> list[ObjectInfo]:
        """Return the unfinished files of killed writers."""
        return [one for one in self.unfinished if self.is_dead(one.key, _file_sign(one))]

    def living(self, leases: Sequence[LeaseRecord]) -> list[LeaseRecord]:
        return [one for one in leases if not self.is_dead(one.key, _lease_sign(one))]

    def dead(self) -> list[LeaseRecord]:
        return [one for one in self.leases if self.is_dead(one.key, _lease_sign(one))]

    def silent_txns(self, state: State) -> list[str]:
        """Return the open transactions without a live writer."""
        return [
            txn
            for txn in open_txns(state)
            if (known := self.signs.states.get(_key(txn))) is not None and known[1] >= self.silence_us
        ]


def open_txns(state: State) -> list[str]:
    """Return the transactions that are neither committed nor aborted."""
    return [txn.txn for txn in state.txns.values() if txn.status == "open"]


def read_clients(
    store: Store, name: str, state: State, leases: Leases, at: Moment, silence_us: int
) -> Clients:
    """Read all signs, and record them under the collector's name. state: the log state, read before.

    Costs a request per open transaction and lease, a listing of jobs, and three more; in a local folder also a walk
    through everything except `data/`.
    """
    before = read_signs(store, name)
    # A listing may miss a lease: one of the last pass is read by its key too.
    known = (key for key in before.states if key.startswith(LEASES) and not is_unfinished(key))
    there = leases.read(known)
    txns = open_txns(state)
    with DaemonPool(READ_AHEAD, "penstock-collect") as pool:
        beats = list(pool.map(lambda txn: _beat(store, txn), txns))
    signs_now: dict[str, Sign] = {one.key: _lease_sign(one) for one in there}
    signs_now |= dict(zip(map(_key, txns), beats, strict=True))
    signs_now |= {folder: sign_of_job(objects) for folder, objects in job_folders(store).items()}
    unfinished = list(_unfinished_uploads(store))
    signs_now |= {one.key: _file_sign(one) for one in unfinished}
    # Half: where clocks cannot be compared, a client is dead after two passes at the earliest.
    signs = before.after(signs_now, at, silence_us // 2)
    clients = Clients(signs=signs, leases=there, unfinished=unfinished, silence_us=silence_us)
    write_signs(store, name, clients.signs)
    return clients


def _unfinished_uploads(store: Store) -> Iterator[ObjectInfo]:
    for folder in FOLDERS if isinstance(store, LocalStore) else ():
        for info, link in list_in_place(store, folder):
            if not link and is_unfinished(info.key) and _UNFINISHED.fullmatch(info.key):
                yield info


def _file_sign(info: ObjectInfo) -> Sign:
    return f"{info.nbytes} {info.etag}"


def job_folders(store: Store) -> dict[str, dict[str, str]]:
    """Return 'jobs/<id>/' -> key -> change token, for all data jobs. Costs a listing."""
    folders: dict[str, dict[str, str]] = {}
    for info, _ in list_in_place(store, JOBS):
        folder = job_folder(info.key)
        if folder:
            folders.setdefault(folder, {})[info.key] = f"{info.nbytes} {info.etag}"
    return folders


def job_folder(key: str) -> str:
    """Return a data job's folder, 'jobs/<id>/', from the key of one of its objects, or ""."""
    match = _JOB.match(key)
    return match[0] if match else ""


def sign_of_job(objects: Mapping[str, str]) -> Sign:
    """Return a job's sign: a hash of its folder, which changes while a process works on the job or waits for it."""
    lines = "".join(f"{key} {token}\n" for key, token in objects.items())
    # The name of a file in a folder need not be UTF-8.
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()


def silent_s(signs: Signs, lease: LeaseRecord, now: Moment) -> float | None:
    """Return the seconds for which a lease is unchanged; 0 if it changed since the pass, None if new."""
    known = signs.states.get(lease.key)
    if known is None:
        return None
    if known[0] != _lease_sign(lease):
        return 0.0
    return (known[1] + (passed(signs.at, now, 2**63) or 0)) / 1e6


def _lease_sign(lease: LeaseRecord) -> Sign:
    return f"{lease.beat} {lease.holder}"


def _key(txn: str) -> str:
    return f"heartbeats/{txn}.json"


def _beat(store: Store, txn: str) -> Sign:
    try:
        beat = read_heartbeat(store, txn)
    except InvalidName:  # the caller's transaction name cannot name a heartbeat
        beat = None
    return f"{beat.beat} {beat.holder}" if beat else ""
