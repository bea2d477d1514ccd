"""A job: a list of units, and a folder in the store that records their progress (docs/format.md, "Jobs")."""

import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from loader.errors import AlreadyExists, Changed, Corrupt, InvalidRuntime, ObjectNotFound
from loader.storage import Store, StoreSpec, is_there
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place

from .job_json import from_frame, from_json, to_frame, to_json
from .pool import Failure, Outcome
from .pool.contract import Code
from .work import StoredPlace, Work

U = TypeVar("U")
R = TypeVar("R")
FOLDER = "jobs/"
MAX_STARTS = 8
"""A block that starts this often without outcomes fails its job."""
# Anyone may write a name: int() refuses thousands of digits, and no job has numbers of more than 18.
_NUMBER = re.compile(r"/([0-9]{1,18})(?:-([0-9]{1,18}))?\.")
_ID = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(r"(?:[0-9a-f]{8})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[U, R]):
    """A list of units to compute. Equal jobs share one folder."""

    store: Store
    """Store that holds the folder, usually the root that the results are for."""
    work: Work[U, R]
    """`Work` that computes the units."""
    about: str
    """Name, such as 'demo/media/b000007'."""
    fingerprint: str
    """Identifies everything that decides units and results, besides the work's name and version."""
    attempt: int = 0
    """Attempt at the job; a new number computes everything again."""
    stores: Sequence[Store] = ()
    """Stores that units may open."""

    @property
    def id(self) -> str:
        """Folder name: 32 hex digits."""
        words = (self.work.name, self.work.version, self.about, self.fingerprint, str(self.attempt))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """A job's description, stored as `job.json` by the first submitter."""

    work: str
    """'module:name' of the work."""
    name: str
    """Name of the work."""
    version: str
    """Version of the work."""
    about: str
    """Name."""
    code: str
    """SHA-256 hex of the source tree."""
    python: str
    """Python's minor release: '3.11'."""
    units: str
    """SHA-256 hex of the units file."""
    blocks: list[tuple[int, int, int]]
    """Per block: number of units, offset of its frame in the units file, and bytes."""
    stores: list[StoredPlace]
    """Stores that units may open."""
    at_us: int
    """Time of submission, microseconds since 1970."""
    token: str = ""
    """8 hex digits that distinguish this folder from others of the job."""
    frames: list[str] = field(default_factory=list)
    """SHA-256 hex of each block's frame; empty in descriptions from earlier releases."""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ValueError(f"token {self.token!r} is not 8 hex digits")
        if not all(map(_SHA256.fullmatch, (self.code, self.units, *self.frames))):
            raise ValueError("code, units or frames are not 64 hex digits each")
        if any(min(block) < 0 for block in self.blocks):
            raise ValueError("a block has a negative number")
        if self.frames and len(self.frames) != len(self.blocks):
            raise ValueError(f"{len(self.frames)} frames for {len(self.blocks)} blocks")

    @property
    def sha256(self) -> str:
        """SHA-256 hex of the stored description."""
        return hashlib.sha256(to_json(self)).hexdigest()

    @property
    def n_units(self) -> int:
        return sum(n for n, *_ in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a block by a runner."""

    attempt: int
    """Runner's attempt."""
    element: int
    """Number of the runner in its attempt."""
    node: str
    """Name of the runner's machine."""
    at_us: int
    """Time of the start, microseconds since 1970."""
    unit: int = -1
    """Unit that is about to run by itself; -1 if units run in parallel."""
    left: str = ""
    """"told" (asked to end) or "failed"; "" if the runner vanished or still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One submission of the job to an engine: first intended, then accepted."""

    by: str
    """'node:process' of the submitter."""
    at_us: int
    """Time of the intent, microseconds since 1970."""
    n_begun: int
    """Block starts before this attempt."""
    placed: bool = False
    """True once the engine accepted or refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutcome(Generic[R]):
    """One unit's outcome, stored as a line: a result or a failure."""

    result: R | None = None
    """Result; None for a failure."""
    code: Code | None = None
    """Code of the failure; None for a result."""
    reason: str = ""
    """First line of the failure's reason; a traceback would differ between machines."""

    @classmethod
    def of(cls, kind: type[R]) -> "type[StoredOutcome[R]]":
        """Return the type for results of type `kind`."""
        return cast("type[StoredOutcome[R]]", cast("Any", cls)[kind])

    @property
    def outcome(self) -> Outcome[R]:
        """This line as an `Outcome`."""
        if self.code is None:
            return Outcome(value=self.result)
        return Outcome(error=Failure(code=self.code, reason=self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """First line of a block's outcomes; describes the whole block."""

    libraries: dict[str, str] = field(default_factory=dict)
    """Distribution that affects the bytes -> its release on the node."""
    part: Any = None
    """Result of `finish` as plain values, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Cost of a start that produced outcomes."""

    seconds: float
    """Duration, in s."""
    node: str
    """Name of the machine."""
    n_computed: int
    """Units that this start ran; earlier starts stored the others."""


def now_us() -> int:
    return time.time_ns() // 1000


class JobFolder:
    """A job's folder; docs/format.md lists its objects.

    Methods raise StoreError, or Corrupt if penstock did not write an object. Raises: InvalidRuntime unless the id is 32
    hex digits.
    """

    def __init__(self, store: Store, id: str) -> None:
        if not _ID.fullmatch(id):
            message = f"job {id!r}; accepted: 32 hex digits, as penstock jobs ls prints them"
            raise InvalidRuntime(message, what="job", given=id, accepted="32 hex digits")
        self.store = store
        self.id = id
        self._base = f"{FOLDER}{id}/"
        self._token: str | None = None

    def key(self, name: str) -> str:
        return f"{self._base}{name}"

    def description(self) -> JobDescription | None:
        """Return the stored description, or None. Any writer of `jobs/` may have forged it."""
        description = self._get("job.json", JobDescription)
        self._token = description.token if description else None
        return description

    def find_description(self, sha256: str) -> JobDescription:
        """Return the description whose stored bytes have this SHA-256.

        Raises: ObjectNotFound; Changed if the bytes differ, before they are parsed.
        """
        where = self.key("job.json")
        data = self.store.get(where).data
        stored = hashlib.sha256(data).hexdigest()
        if stored != sha256:
            raise Changed(
                f"{where} in {self.store.url} is not the description that was submitted: its SHA-256 is "
                f"{stored[:12]}, not {sha256[:12]}. Find out who may write to {FOLDER} there, then run "
                f"penstock jobs clear {self.id}, and the command that submitted the job again",
                what="description",
                where=f"{self.store.url}/{where}",
                given=stored,
                accepted=sha256,
            )
        description = from_json(data, JobDescription, where)
        self._token = description.token
        return description

    def create(self, description: JobDescription, units: Path) -> JobDescription:
        """Write units and description; return the first submitter's description, which may differ."""
        # Units first, under their hash: a description never lacks them, and submitters do not collide.
        self.store.put_file(self.key(f"units-{description.units}.jsonl.zst"), str(units))
        if self._put_new("job.json", description):
            self._token = description.token
            return description
        first = self.description()
        if first is None:  # removed in the meantime
            raise ObjectNotFound(f"{self.key('job.json')} in {self.store.url}")
        return first

    def units(self, description: JobDescription, block: int, kind: type[U]) -> list[U]:
        """Return a block's units. Costs one range request."""
        name = f"units-{description.units}.jsonl.zst"
        n_units, offset, nbytes = description.blocks[block]
        where = f"block {block} of {self.key(name)}"
        data = self.store.get_range(self.key(name), offset, nbytes).data
        # As lists: a description of an earlier release has no frames, and must not pass.
        if [hashlib.sha256(data).hexdigest()] != description.frames[block : block + 1]:
            raise Changed(
                f"{where} in {self.store.url} is not what was submitted; find out who may write to {FOLDER} "
                f"there, then run penstock jobs clear {self.id}, and the command that submitted the job again",
                what="units",
                where=f"{self.store.url}/{where}",
            )
        lines = from_frame(data, where)
        if len(lines) != n_units:
            message = f"{where} has {len(lines)} units, job.json lists {n_units}"
            raise Corrupt(message, what="units", where=where, given=len(lines), accepted=n_units)
        return [from_json(line, kind, where) for line in lines]

    def has_units(self, description: JobDescription) -> bool:
        """Return whether the units file exists. Costs a request."""
        return is_there(self.store, self.key(f"units-{description.units}.jsonl.zst"))

    def done(self, description: JobDescription | None = None) -> list[int]:
        """Return the sorted numbers of finished blocks, without forged ones beyond the description. Costs a listing."""
        blocks = sorted(block for block, _ in self._numbers("done/"))
        if description is None:
            return blocks
        return [block for block in blocks if block < len(description.blocks)]

    def put_done(self, block: int, head: Head, outcomes: Sequence[StoredOutcome[Any]]) -> None:
        """Write a block's outcomes, unless another runner wrote them first."""
        try:
            self.store.put_if_absent(
                self.key(f"done/{block}.jsonl.zst"), to_frame(map(to_json, [head, *outcomes]))
            )
        except AlreadyExists:
            return

    def outcomes(
        self, description: JobDescription, block: int, kind: type[R]
    ) -> tuple[Head, list[Outcome[R]]]:
        """Return a finished block's head, and its outcomes in unit order."""
        where = self.key(f"done/{block}.jsonl.zst")
        lines = from_frame(self.store.get(where).data, where)
        if len(lines) != description.blocks[block][0] + 1:
            raise Corrupt(
                f"{where} has {len(lines) - 1} outcomes, job.json lists {description.blocks[block][0]}"
            )
        stored = StoredOutcome.of(kind)
        return from_json(lines[0], Head, where), [
            from_json(line, stored, where).outcome for line in lines[1:]
        ]

    def starts(self, block: int) -> list[Start]:
        """Return a block's starts, in order. Costs a listing, and a request per start."""
        starts = [self._get(f"begun/{one}-{k}.json", Start) for one, k in self._numbers(f"begun/{block}-")]
        return [one for one in starts if one is not None]

    def n_starts(self) -> Counter[int]:
        """Return block -> number of starts. Costs a listing."""
        return Counter(block for block, _ in self._numbers("begun/"))

    def begin(self, block: int, start: Start, number: int) -> bool:
        """Write start `number` (from 1) of a block; return False if another runner has."""
        return self._put_new(f"begun/{block}-{number}.json", start)

    def tell_start(self, block: int, start: Start, number: int) -> None:
        """Overwrite this runner's own start record."""
        self.store.put(self.key(f"begun/{block}-{number}.json"), to_json(start))

    def keep(self, block: int, number: int, outcomes: dict[int, StoredOutcome[Any]]) -> None:
        """Store the outcomes so far, keyed by unit number in the block."""
        lines = [to_json([unit, one]) for unit, one in sorted(outcomes.items())]
        self.store.put(self.key(f"kept/{block}-{number}.jsonl.zst"), to_frame(lines))

    def kept(self, block: int, kind: type[R]) -> dict[int, StoredOutcome[R]]:
        """Return the outcomes that earlier starts of a block stored. Costs a listing, and a request per start."""
        outcomes: dict[int, StoredOutcome[R]] = {}
        numbered = cast("Any", tuple)[int, StoredOutcome.of(kind)]
        for name, number in self._numbers(f"kept/{block}-"):
            where = self.key(f"kept/{name}-{number}.jsonl.zst")
            for line in from_frame(self.store.get(where).data, where):
                outcomes.update([from_json(line, numbered, where)])
        return outcomes

    def put_spent(self, block: int, number: int, spent: Spent) -> None:
        """Write a start's cost."""
        self.store.put(self.key(f"spent/{block}-{number}.json"), to_json(spent))

    def put_log(self, block: int, number: int, text: str) -> None:
        """Write a failed start's log."""
        # The end, since a traceback's last lines name the error.
        self.store.put(self.key(f"logs/{block}-{number}.txt"), text.encode(errors="replace")[-64 * 1024 :])

    def log(self, block: int) -> str:
        """Return the log of a block's last failed start, or ""."""
        numbers = sorted(number for _, number in self._numbers(f"logs/{block}-"))
        if not numbers:
            return ""
        return bytes(self.store.get(self.key(f"logs/{block}-{numbers[-1]}.txt")).data).decode(
            errors="replace"
        )

    def attempt_name(self, attempt: int) -> str:
        """Return the name of an attempt in engines. Raises: ObjectNotFound if the job was removed."""
        if self._token is None and self.description() is None:
            raise ObjectNotFound(f"{self.key('job.json')} in {self.store.url}")
        # Engines limit names. The token distinguishes a job that was cleared and submitted again.
        return f"pk-{self.id[:12]}-{self._token}-{attempt}"

    def attempts(self) -> list[int]:
        """Return all attempt numbers, sorted. Costs a listing."""
        return sorted(number for number, _ in self._numbers("given/"))

    def newest_attempt(self) -> tuple[int, AttemptRecord | None]:
        """Return the newest attempt's number and record; (0, None) before the first."""
        newest = max(self.attempts(), default=0)
        return newest, self._get(f"given/{newest}.json", AttemptRecord) if newest else None

    def intend(self, number: int, attempt: AttemptRecord) -> bool:
        """Record the intent to submit an attempt; return False if another submitter already has."""
        return self._put_new(f"given/{number}.json", attempt)

    def placed(self, number: int, attempt: AttemptRecord) -> None:
        """Record that an engine accepted or refused an attempt."""
        self.store.put(self.key(f"given/{number}.json"), to_json(replace(attempt, placed=True)))

    def attend(self) -> None:
        """Write a heartbeat: a process is waiting for the job."""
        self.store.put(self.key("attended.json"), to_json(now_us()))

    def heartbeat_us(self) -> int:
        """Return the last heartbeat's time, in microseconds since 1970; 0 if none."""
        return self._get("attended.json", int) or 0

    @property
    def stopped(self) -> bool:
        """True if a user cancelled the job."""
        return is_there(self.store, self.key("stop"))

    def stop(self) -> None:
        """Request that runners end the job."""
        self.store.put(self.key("stop"), b"")

    def go_on(self) -> None:
        """Cancel a stop request."""
        self.store.delete_many([self.key("stop")])

    def remove(self) -> int:
        """Delete the folder, the description last; return the number of deleted objects.

        Symbolic links are kept and logged.
        """
        objects = list(list_in_place(self.store, self._base, FOLDER))
        for info, is_link in objects:
            if is_link:
                _log.warning("%s/%s is a symbolic link: not deleted", self.store.url, info.key)
        # If this process is killed, the next submitter still finds the description, and removes the rest.
        last = self.key("job.json")
        keys = sorted((info.key for info, is_link in objects if not is_link), key=lambda key: key == last)
        delete_in_place(self.store, keys, FOLDER)
        return len(keys)

    def _numbers(self, prefix: str) -> Iterator[tuple[int, int]]:
        for info in self.store.list(self.key(prefix)):
            match = _NUMBER.search(info.key, len(self._base) - 1)
            if match:
                yield int(match[1]), int(match[2] or 0)

    def _get(self, name: str, kind: type[R]) -> R | None:
        try:
            data = self.store.get(self.key(name)).data
        except ObjectNotFound:
            return None
        return from_json(data, kind, self.key(name))

    def _put_new(self, name: str, value: object) -> bool:
        try:
            self.store.put_if_absent(self.key(name), to_json(value))
        except AlreadyExists:
            return False
        return True


def store_url(store: Store) -> str:
    """Return the URL by which a job's units open a store."""
    spec = getattr(store, "spec", None)
    if isinstance(spec, StoreSpec):
        return spec.url
    return store.url


def job_ids(store: Store) -> Iterator[str]:
    """Yield the sorted ids of all jobs in a store. Costs a request per folder."""
    after = FOLDER
    while (first := next(iter(store.list(FOLDER, after)), None)) is not None:
        id_ = first.key.removeprefix(FOLDER).partition("/")[0]
        if _ID.fullmatch(id_):
            yield id_
        after = f"{FOLDER}{id_}0"  # "0" is the character after "/"
