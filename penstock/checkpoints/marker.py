"""Checkpoint keys, and the marker that completes a checkpoint. Does not need torch.

    checkpoints/<run>/steps/<step>.json                          marker, created last
    checkpoints/<run>/parts/<step>/<16 hex>-<k>.safetensors      parts of one rank and attempt
    checkpoints/<run>/parts/<step>/<16 hex>-index.json           location of each tensor
    checkpoints/<run>/parts/<step>/~copying                      empty, while a copy is made

`step` has 12 digits, so keys sort by it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loader.dataset.log.entries import DAMAGED, canonical
from loader.errors import (
    CheckpointNotFound,
    Corrupt,
    CorruptCheckpoint,
    FormatTooNew,
    InvalidName,
    ObjectNotFound,
)
from loader.json_text import parse_json_object
from loader.storage import Store

FORMAT = 1
_READ_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STEP = re.compile(r"[0-9]{12}\.json")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StoredObject:
    """One object of a checkpoint."""

    name: str
    """Under `parts/<step>/`."""
    nbytes: int
    """Size in bytes."""
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    run: str
    """Run name."""
    step: int
    """Completed steps."""
    at_us: int
    """UTC microseconds since 1970."""
    world_size: int
    """Ranks that saved it."""
    index: StoredObject
    parts: Sequence[StoredObject]
    """Objects with tensors and values."""
    plan: str | None = None
    """Plan hash; None if saved without a loader."""
    versions: Sequence[Mapping[str, str]] = ()
    """Versions that the plan reads, each {"source", "id", "name"}."""
    loader: Mapping[str, Any] | None = field(default=None, repr=False)
    """Loader state; None if saved without a loader."""

    @property
    def objects(self) -> list[StoredObject]:
        """Index and parts."""
        return [self.index, *self.parts]

    @property
    def nbytes(self) -> int:
        """Bytes without the marker."""
        return sum(one.nbytes for one in self.objects)

    def key(self, stored: StoredObject) -> str:
        return part_key(self.run, self.step, stored.name)


def sha256(data: bytes) -> str:
    """Return 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_run(run: str) -> bool:
    """Return whether a run of this name may have checkpoints."""
    return _NAME.fullmatch(run) is not None


def check_run(run: str) -> str:
    """Return a valid run name. Raises: InvalidName."""
    if not is_run(run):
        raise InvalidName(
            f"{run!r} cannot be a run's name: accepted are 1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit"
        )
    return run


def marker_key(run: str, step: int) -> str:
    return f"checkpoints/{run}/steps/{step:012d}.json"


def part_key(run: str, step: int, name: str) -> str:
    """Return an object's key; the prefix of a step's objects for ""."""
    return f"checkpoints/{run}/parts/{step:012d}/{name}"


def encode(checkpoint: Checkpoint) -> bytes:
    """Return canonical JSON with the SHA-256 of its content."""
    # Over the body without the hash itself: `decode` takes it out before it compares.
    body = {"checkpoint": FORMAT, **asdict(checkpoint)}
    return canonical({**body, "sha256": sha256(canonical(body))})


def decode(data: bytes, where: str) -> Checkpoint:
    """Parse a marker. Raises: CorruptCheckpoint; Corrupt if it is unknown, but as it was written; FormatTooNew."""
    try:
        body = parse_json_object(data)
        recorded = body.pop("sha256")
        if sha256(canonical(body)) != recorded:
            raise ValueError("its own sha256 does not match its content")
    except DAMAGED as error:
        problem = f"{where} has {len(data):,} bytes, and is not the marker that was written ({error})"
        raise CorruptCheckpoint(problem, problem=problem, what="sha256", where=where) from error
    try:
        # After the hash: a flipped bit in the number must not look like a newer release.
        if body.pop("checkpoint") > FORMAT:
            raise FormatTooNew(
                f"{where} was written by a newer penstock; this one reads format {FORMAT}: update it",
                what="checkpoint format",
                where=where,
                accepted=FORMAT,
            )
        index = StoredObject(**body.pop("index"))
        parts = tuple(StoredObject(**one) for one in body.pop("parts"))
        versions = tuple(body.pop("versions"))
        return Checkpoint(**body, index=index, parts=parts, versions=versions)
    except DAMAGED as error:
        # It is among `DAMAGED`, and must keep its own message.
        if isinstance(error, FormatTooNew):
            raise
        raise Corrupt(
            f"{where} is a marker that this penstock does not read ({error!r}); update it, or load another step",
            what="marker",
            where=where,
            given=repr(error),
        ) from error


def read(store: Store, run: str, step: int) -> Checkpoint:
    """Return a step's checkpoint. Raises: CheckpointNotFound; CorruptCheckpoint; Corrupt; FormatTooNew."""
    key = marker_key(run, step)
    try:
        checkpoint = decode(store.get(key).data, f"{store.url}/{key}")
    except CorruptCheckpoint as error:
        raise damaged(store, run, step, "", error.problem) from error
    except ObjectNotFound as error:
        have = ", ".join(map(str, steps(store, run)[-5:])) or "none"
        raise CheckpointNotFound(
            f"{store.url}: run {run!r} has no checkpoint of step {step}; the newest are: {have}",
            what=f"step {step}",
            where=f"{store.url}: run {run!r}",
            given=step,
            accepted=have,
        ) from error
    # A marker that was copied under another key has a correct hash.
    if (checkpoint.run, checkpoint.step) != (run, step):
        raise damaged(
            store,
            run,
            step,
            "",
            f"{store.url}/{key} is the marker of step {checkpoint.step} of run {checkpoint.run!r}",
        )
    return checkpoint


def damaged(store: Store, run: str, step: int, name: str, problem: str) -> CorruptCheckpoint:
    """Return the error of a damaged checkpoint. name: object under `parts/<step>/`; "" for the marker."""
    return CorruptCheckpoint(
        f"the checkpoint of step {step} of run {run!r} is damaged: {problem}. Restore the object, or let the run go on "
        f"at the checkpoint before it: penstock checkpoints set-aside {run}@{step} --root {store.url} "
        "--reason WHY",
        run=run,
        step=step,
        name=name,
        problem=problem,
        what=name or "marker",
        where=f"{run}@{step}",
        given=problem,
    )


def steps(store: Store, run: str) -> list[int]:
    """Return the steps that have a marker, ascending."""
    prefix = marker_key(run, 0).rpartition("/")[0] + "/"
    names = (one.key.removeprefix(prefix) for one in store.list(prefix))
    return [int(name[:12]) for name in names if _STEP.fullmatch(name)]


def runs(store: Store) -> Iterator[str]:
    """Yield the runs under this root, sorted. Lists all checkpoints."""
    last = None
    for info in store.list("checkpoints/"):
        run, slash, _ = info.key.removeprefix("checkpoints/").partition("/")
        if run != last and slash and _NAME.fullmatch(run):
            yield run
        # Keys are sorted, so all keys of a run follow each other.
        last = run if slash else last


def object_problem(store: Store, key: str, stored: StoredObject) -> str:
    """Return what is wrong with an object, or "". Reads it whole, in blocks of 1 MiB. Raises: StoreError."""
    digest = hashlib.sha256()
    nbytes = 0
    try:
        with store.open_stream(key) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
                nbytes += len(data)
    except ObjectNotFound:
        return f"it is missing; {stored.nbytes:,} bytes were written"
    if nbytes != stored.nbytes:
        return f"it has {nbytes} bytes; {stored.nbytes} were written"
    if digest.hexdigest() == stored.sha256:
        return ""
    return "its SHA-256 differs from the recorded one"
