"""The clients that are alive, as far as a collector can tell: their counters move, or a data job's folder changes.

The notes of a collector: the signs of life that it saw, and for how long, on its own clock and no other.

    collect/<name>/signs.json      {"at_us", "checksum", "format", "run", "run_us", "signs": {key: [what it said,
                                   silent_us]}}; the checksum is that of a log entry
    collect/<name>/plan.parquet    what is condemned, and for how long; see `plan.py`

A name stands for a clock: a collector that runs on several machines has a name on each, and begins with nothing there.
Durations are added up from look to look; `clock.py` defines how much of the time between two counts.
"""

import hashlib
import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from loader.dataset.leases import FOLDER as LEASES
from loader.dataset.leases import LeaseRecord, Leases, read_heartbeat
from loader.dataset.log.entries import DAMAGED, canonical, checksum_of
from loader.dataset.log.marker import FOLDERS as ROOT_FOLDERS
from loader.dataset.log.state import State
from loader.errors import FormatTooNew, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.disk.store import LocalStore
from loader.storage.disk.unlisted_files import is_unfinished, list_in_place
from loader.storage.store import TEMPORARY, UNFINISHED, ObjectInfo

from .clock import Moment, passed

FORMAT = 1
JOBS = "jobs/"
JOB_SILENCE_US = 14 * 24 * 3_600_000_000
"""Microseconds; a job is dead when its folder has not changed for so long."""
FOLDER = "collect/"
FOLDERS = (TEMPORARY, *(folder for folder in ROOT_FOLDERS if folder != "data/"))
"""Prefixes of all that a root has beside `data/`, files at the top first, ascending."""
_UNFINISHED = re.compile(rf"(.+/)?{UNFINISHED}", re.DOTALL)
_JOB = re.compile(r"jobs/[0-9a-f]{32}/")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
logger = logging.getLogger(__name__)

Said = str
"""The content of a sign of life: its counter and holder, or ""."""


def own_name() -> str:
    """Return the name of this machine's collector."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60].strip("-.") or "host"


def check_name(name: str) -> str:
    """Return the name itself. Raises: InvalidName."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot name a collector: 1 to 100 of A-Z a-z 0-9 . _ -, the first no sign"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Signs of life, as they were at a look."""

    at: Moment | None = None
    """The time of the look; None before the first."""
    said: Mapping[str, tuple[Said, int]] = field(default_factory=dict)
    """Key -> (content, microseconds for which it has been the same)."""

    def silent_us(self, key: str) -> int:
        """Return the microseconds for which a sign has said the same; 0 for one that was not there."""
        return self.said[key][1] if key in self.said else 0

    def after(self, now: Mapping[str, Said], at: Moment, most_us: int) -> "Signs":
        """Return the signs after another look. now: key -> content; most_us: as for `passed`."""
        step = passed(self.at, at, most_us)
        silent = {
            key: self.said[key][1] + step
            if step is not None and key in self.said and self.said[key][0] == said
            else 0
            for key, said in now.items()
        }
        return Signs(at=at, said={key: (said, silent[key]) for key, said in now.items()})


def read_signs(store: Store, name: str) -> Signs:
    """Return the notes of the collector's last look; empty when it never looked, or the notes are damaged.

    Raises: FormatTooNew.
    """
    key = f"{FOLDER}{name}/signs.json"
    try:
        body = parse_json_object(store.get(key).data)
        if body["format"] > FORMAT:
            raise FormatTooNew(
                f"{store.url}/{key} has format {body['format']}; this penstock reads up to {FORMAT}"
            )
        if body.get("checksum") != checksum_of(body):
            raise ValueError("its checksum does not hold")
        said = {str(sign): (str(what), int(silent)) for sign, (what, silent) in body["signs"].items()}
        return Signs(at=Moment.from_json(body), said=said)
    except ObjectNotFound:
        return Signs()
    except FormatTooNew:
        raise
    except DAMAGED as error:
        logger.warning("%s in %s cannot be read (%s): the collector begins again", key, store.url, error)
        return Signs()


def write_signs(store: Store, name: str, signs: Signs) -> None:
    """Write the notes for the next look. Raises: StoreError."""
    said = {key: [what, silent] for key, (what, silent) in signs.said.items()}
    assert signs.at is not None
    body = {"format": FORMAT, **signs.at.to_json(), "signs": said}
    store.put(f"{FOLDER}{name}/signs.json", canonical({**body, "checksum": checksum_of(body)}))


READ_AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The signs of life of one look."""

    signs: Signs
    """Those of transactions and leases, with the time for which they have been silent."""
    leases: Sequence[LeaseRecord]
    """Leases that were there."""
    unfinished: Sequence[ObjectInfo]
    """Files beside `data/` that writers have not finished, in key order."""
    silence_us: int
    """Microseconds; a client whose sign has said the same for so long is dead."""

    def is_dead(self, key: str, said: Said) -> bool:
        """Return whether the sign of life has long been silent and still is."""
        known = self.signs.said.get(key)
        return known is not None and known[0] == said and known[1] >= self.silence_us

    def left_jobs(self) -> set[str]:
        """Return the folders of dead jobs, 'jobs/<id>/'."""
        said = self.signs.said.items()
        return {key for key, (_, us) in said if _JOB.fullmatch(key) and us >= JOB_SILENCE_US}

    def left_files(self) -> list[ObjectInfo]:
        """Return the unfinished files that have long been as they are: their writers were killed."""
        return [one for one in self.unfinished if self.is_dead(one.key, _file_said(one))]

    def living(self, leases: Sequence[LeaseRecord]) -> list[LeaseRecord]:
        """Return the current leases that count."""
        return [one for one in leases if not self.is_dead(one.key, _said(one))]

    def dead(self) -> list[LeaseRecord]:
        """Return the leases that claim nothing any more."""
        return [one for one in self.leases if self.is_dead(one.key, _said(one))]

    def silent_txns(self, state: State) -> list[str]:
        """Return the open transactions without a live writer."""
        return [
            txn
            for txn in open_txns(state)
            if (known := self.signs.said.get(_key(txn))) is not None and known[1] >= self.silence_us
        ]


def open_txns(state: State) -> list[str]:
    """Return the transactions that are neither committed nor aborted."""
    return [txn.txn for txn in state.txns.values() if txn.status == "open"]


def look(store: Store, name: str, state: State, leases: Leases, at: Moment, silence_us: int) -> Clients:
    """Read all signs of life, after `state` was read, and note them under the collector's name.

    A lease that was seen at the look before is asked for, listed or not. A request per open transaction, per lease, a
    listing of jobs, and three more; in a folder of this machine a walk through all but `data/`. Raises: StoreError.
    """
    before = read_signs(store, name)
    known = (key for key in before.said if key.startswith(LEASES) and not is_unfinished(key))
    there, txns = leases.read(known), open_txns(state)
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-collect") as pool:
        beats = list(pool.map(lambda txn: _beat(store, txn), txns))
    said: dict[str, Said] = {one.key: _said(one) for one in there}
    said |= dict(zip(map(_key, txns), beats, strict=True))
    said |= {folder: said_by(objects) for folder, objects in job_folders(store).items()}
    unfinished = list(_unfinished(store))
    said |= {one.key: _file_said(one) for one in unfinished}
    signs = before.after(said, at, silence_us // 2)
    clients = Clients(signs=signs, leases=there, unfinished=unfinished, silence_us=silence_us)
    write_signs(store, name, clients.signs)
    return clients


def _unfinished(store: Store) -> Iterator[ObjectInfo]:
    """Yield the files that writers have not finished, with the names that penstock gives; none in a bucket."""
    for folder in FOLDERS if isinstance(store, LocalStore) else ():
        for info, link in list_in_place(store, folder):
            if not link and is_unfinished(info.key) and _UNFINISHED.fullmatch(info.key):
                yield info


def _file_said(info: ObjectInfo) -> Said:
    return f"{info.nbytes} {info.etag}"


def job_folders(store: Store) -> dict[str, dict[str, str]]:
    """Return 'jobs/<id>/' -> key -> change token, of all data jobs. A listing. Raises: StoreError."""
    folders: dict[str, dict[str, str]] = {}
    for info, _ in list_in_place(store, JOBS):
        folder = job_folder(info.key)
        if folder:
            folders.setdefault(folder, {})[info.key] = f"{info.nbytes} {info.etag}"
    return folders


def job_folder(key: str) -> str:
    """Return the 'jobs/<id>/' of an object of a data job, "" for another one."""
    found = _JOB.match(key)
    return found[0] if found else ""


def said_by(objects: Mapping[str, str]) -> Said:
    """Return the sign of life of a job: a hash of its folder, which changes while a process works on it or waits."""
    lines = "".join(f"{key} {token}\n" for key, token in objects.items())
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()


def silent_s(signs: Signs, lease: LeaseRecord, now: Moment) -> float | None:
    """Return the seconds for which a collector has not seen a lease move.

    0 when it moved since its last look, None when it never saw it.
    """
    known = signs.said.get(lease.key)
    if known is None:
        return None
    return 0.0 if known[0] != _said(lease) else (known[1] + (passed(signs.at, now, 2**63) or 0)) / 1e6


def _said(lease: LeaseRecord) -> Said:
    return f"{lease.beat} {lease.holder}"


def _key(txn: str) -> str:
    return f"heartbeats/{txn}.json"


def _beat(store: Store, txn: str) -> Said:
    try:
        beat = read_heartbeat(store, txn)
    except InvalidName:  # a name of the caller's that no heartbeat can have
        beat = None
    return f"{beat.beat} {beat.holder}" if beat else ""
