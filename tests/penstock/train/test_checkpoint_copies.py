"""Checkpoints between stores: verified, whole or not there, resumed after a kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import loader
from loader.errors import CheckpointNotFound, Conflict, Corrupt, InvalidStore, Transient
from loader.storage import Store, open_store
from penstock.checkpoints import Checkpoints, marker, retention
from penstock.checkpoints.marker import Checkpoint, StoredObject
from penstock.train.checkpoint_copies import copy_checkpoints
from tests.refusals import refusal
from tests.servers.processes import python

REPOSITORY = Path(__file__).parents[3]
N_PARTS = 6
KILLED = """
import sys
import loader
from loader.storage import open_store
from penstock.train import checkpoint_copies
from tests.mortal_store import SIDES, forks_killed

source, targets = sys.argv[1:]

def work(death):
    root = loader.Root(f"{targets}/{death.when}-{death.at}")
    root._use(death.of(root.store))
    list(checkpoint_copies.copy_checkpoints(open_store(source), root, "small"))

print([forks_killed(work, when) for when in SIDES])
"""


def part(number: int) -> bytes:
    return bytes([number]) * (50_000 + number)


def save(store: Store, step: int, run: str = "big", n_parts: int = N_PARTS) -> Checkpoint:
    """A checkpoint without torch."""
    data = {f"{step:016x}-{number:05d}.safetensors": part(number) for number in range(n_parts)}
    data[f"{step:016x}-index.json"] = b"{}"
    objects = [
        StoredObject(name=name, nbytes=len(body), sha256=marker.sha256(body)) for name, body in data.items()
    ]
    checkpoint = Checkpoint(
        run=run, step=step, at_us=1, world_size=8, index=objects[-1], parts=tuple(objects[:-1])
    )
    for stored in objects:
        store.put(checkpoint.key(stored), data[stored.name])
    store.put(marker.marker_key(run, step), marker.encode(checkpoint))
    return checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    """Steps 10 and 20 of a run."""
    loader.Root(tmp_path / "source").create()
    store = open_store(str(tmp_path / "source"))
    save(store, 10)
    save(store, 20)
    yield store
    store.close()


@pytest.fixture
def target(tmp_path: Path) -> loader.Root:
    return loader.Root(tmp_path / "target")


def objects(store: Store) -> dict[str, bytes]:
    return {info.key: store.get(info.key).data for info in store.list("checkpoints/")}


def test_run_arrives_byte_for_byte_and_once(source: Store, target: loader.Root) -> None:
    ten, twenty = copy_checkpoints(source, target, "big")
    assert (ten.step, ten.copied, ten.objects, twenty.step) == (10, 7, 7, 20)
    assert objects(target.store) == objects(source)
    again = list(copy_checkpoints(source, target, "big"))
    assert [copy.copied for copy in again] == [0, 0]
    assert Checkpoints(target, "big").steps() == [10, 20]


def test_training_goes_on_from_the_copy(tmp_path: Path, target: loader.Root) -> None:
    state = {"weight": torch.arange(100_000, dtype=torch.float32), "lr": 0.1}
    with Checkpoints(tmp_path / "root", "big", part_bytes=65_536) as saved:
        saved.save(7, state)
    list(copy_checkpoints(loader.Root(tmp_path / "root").store, target, "big"))
    other = {"weight": torch.zeros(100_000), "lr": 0.0}
    with Checkpoints(target, "big") as copied:
        assert copied.load(other) is not None
    assert torch.equal(other["weight"], state["weight"])
    assert other["lr"] == 0.1


def test_sigkill_at_each_request_leaves_no_half_checkpoint(source: Store, tmp_path: Path) -> None:
    """A whole step or none is visible, and the next copy ends alike."""
    checkpoint = save(source, 5, "small", n_parts=2)
    done = python("-c", KILLED, source.url, tmp_path / "targets", cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.strip("[]\n").split(","))
    assert before == after > len(checkpoint.objects) + 2
    expected = {key: data for key, data in objects(source).items() if "/small/" in key}
    for side in ("before", "after"):
        for number in range(1, before + 1):
            target = loader.Root(tmp_path / "targets" / f"{side}-{number}")
            if marker.steps(target.store, "small"):
                there = objects(target.store)
                there.pop("checkpoints/small/parts/000000000005/~copying", None)
                assert there == expected, (side, number)
            list(copy_checkpoints(source, target, "small"))
            assert objects(target.store) == expected, (side, number)


def test_damaged_part_is_named_and_its_step_not_visible(source: Store, target: loader.Root) -> None:
    checkpoint = marker.read(source, "big", 20)
    key = checkpoint.key(checkpoint.parts[3])
    source.put(key, b"x" + source.get(key).data[1:])
    with refusal(Corrupt, what="object", within="-00003.safetensors"):
        list(copy_checkpoints(source, target, "big"))
    assert marker.steps(target.store, "big") == [10]
    assert key not in objects(target.store)


def test_damaged_rest_of_a_killed_copy_is_replaced(source: Store, target: loader.Root) -> None:
    checkpoint = marker.read(source, "big", 20)
    target.create()
    for number, data in ((0, part(0)), (1, b"x" * len(part(1))), (2, b"short")):
        target.store.put(checkpoint.key(checkpoint.parts[number]), data)
    (copy,) = copy_checkpoints(source, target, "big", 20)
    assert copy.copied == copy.objects - 1, "the first part was there"
    assert marker.steps(target.store, "big") == [20]
    assert objects(target.store).items() <= objects(source).items()


def test_other_checkpoints_of_the_target_stay(source: Store, target: loader.Root, tmp_path: Path) -> None:
    target.create()
    save(target.store, 15)
    before = objects(target.store)
    with refusal(Conflict, what="step", where=f"{tmp_path}/target: run 'big'", given=10, accepted="above 15"):
        list(copy_checkpoints(source, target, "big", 10))
    target.store.put(marker.marker_key("big", 20), b"{}")
    with refusal(
        Conflict,
        where=f"{tmp_path}/target/checkpoints/big/steps/000000000020.json",
        accepted="the same checkpoint",
    ):
        list(copy_checkpoints(source, target, "big", 20))
    assert before.items() <= objects(target.store).items()
    with refusal(
        CheckpointNotFound, what="step 30", where=f"{tmp_path}/source: run 'big'", given=30, accepted="10, 20"
    ):
        list(copy_checkpoints(source, target, "big", 30))
    with refusal(
        InvalidStore,
        what="locations",
        given=[f"{tmp_path}/source", f"{tmp_path}/source"],
        accepted="locations apart",
    ):
        list(copy_checkpoints(source, loader.Root(tmp_path / "source"), "big"))


def test_step_saved_meanwhile_withdraws_the_marker(source: Store, target: loader.Root) -> None:
    """A later save deletes parts without a marker as leftovers: the copy must not name them."""
    target.create()

    class Saving:
        """The target's store; a training saves step 99 there, and deletes leftovers, before the marker comes."""

        def __getattr__(self, name: str) -> object:
            return getattr(target.store, name)

        def put_if_absent(self, key: str, data: bytes) -> None:
            if "/steps/" in key:
                target.store.delete_many([info.key for info in target.store.list("checkpoints/big/parts/")])
                save(target.store, 99)
            target.store.put_if_absent(key, data)

    root = loader.Root(target.url)
    root._use(Saving())  # type: ignore[arg-type]
    with refusal(Conflict, what="step", given=10, accepted="above 99"):
        list(copy_checkpoints(source, root, "big", 10))
    assert marker.steps(target.store, "big") == [99]


class Failing:
    """The target's store; requests after the marker fail, and a later save deletes the parts before."""

    def __init__(self, store: Store, *, deletes: bool) -> None:
        self._store, self._deletes, self._fails = store, deletes, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._store.put_if_absent(key, data)
        if "/steps/" in key:
            if self._deletes:
                parts = [info.key for info in self._store.list("checkpoints/big/parts/")]
                self._store.delete_many([key for key in parts if key.endswith(".safetensors")])
            self._fails = True

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[object]:
        if self._fails:
            raise Transient("planted")
        yield from self._store.list(prefix, start_after)


class Killed(Failing):
    """Nothing after the marker has an effect."""

    def delete_many(self, keys: object) -> None:
        if not self._fails:
            self._store.delete_many(keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("kind", [Failing, Killed])
def test_copy_that_fails_after_its_marker_is_repeated(
    source: Store, target: loader.Root, kind: type[Failing], deletes: bool
) -> None:
    target.create()
    root = loader.Root(target.url)
    root._use(kind(target.store, deletes=deletes))  # type: ignore[arg-type]
    with pytest.raises(Transient):
        list(copy_checkpoints(source, root, "big", 10))
    if kind is Failing:
        assert marker.steps(target.store, "big") == [], "it is not known to be whole"
    list(copy_checkpoints(source, target, "big"))
    assert objects(target.store) == objects(source)


@pytest.mark.parametrize("days", [0, 3])
def test_training_that_saves_leaves_parts_of_a_copy(
    source: Store, target: loader.Root, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy was killed beside its parts; after days, they are leftovers."""
    target.create()
    checkpoint = marker.read(source, "big", 10)
    for part_of in checkpoint.objects:
        target.store.put(checkpoint.key(part_of), source.get(checkpoint.key(part_of)).data)
    target.store.put("checkpoints/big/parts/000000000010/~copying", b"")
    monkeypatch.setattr(retention, "COPYING_US", retention.COPYING_US - days * 24 * 3600 * 10**6)
    with Checkpoints(target, "big", keep_last=1) as saved:
        saved.save(99, {"weight": torch.zeros(3)})
    left = {key for key in objects(target.store) if "000000000010" in key}
    assert len(left) == (0 if days else len(checkpoint.objects) + 1)


def test_copy_killed_after_its_marker_is_whole_though_a_training_saved(
    source: Store, target: loader.Root
) -> None:
    """The training deletes what has neither a marker nor a claim, just before the marker comes."""

    class Saving(Killed):
        def put_if_absent(self, key: str, data: bytes) -> None:
            if "/steps/" in key:
                with Checkpoints(loader.Root(target.url), "big", keep_last=2) as saved:
                    saved.save(99, {"weight": torch.zeros(3)})
            super().put_if_absent(key, data)

    target.create()
    root = loader.Root(target.url)
    root._use(Saving(target.store, deletes=False))  # type: ignore[arg-type]
    with pytest.raises(Transient):
        list(copy_checkpoints(source, root, "big", 10))
    assert marker.steps(target.store, "big") == [10, 99]
    copied = marker.read(target.store, "big", 10)
    assert {copied.key(part) for part in copied.objects} <= objects(target.store).keys()


@pytest.mark.parametrize("name", ["../../../../x", "a/b"])
def test_marker_names_no_other_place(source: Store, target: loader.Root, name: str) -> None:
    odd = StoredObject(name=name, nbytes=1, sha256="0" * 64)
    checkpoint = Checkpoint(run="big", step=30, at_us=1, world_size=1, index=odd, parts=())
    source.put(marker.marker_key("big", 30), marker.encode(checkpoint))
    with refusal(Corrupt, what="name of a part", given=name):
        list(copy_checkpoints(source, target, "big", 30))


@pytest.mark.server
def test_copy_to_s3_and_back(source: Store, tmp_path: Path, s3: dict[str, str]) -> None:
    cloud = loader.Root("s3://bucket/copied-checkpoints", options=s3)
    list(copy_checkpoints(source, cloud, "big"))
    back = loader.Root(tmp_path / "back")
    list(copy_checkpoints(cloud.store, back, "big"))
    assert objects(back.store) == objects(source)


def test_verb_copies_one_step(source: Store, tmp_path: Path, cli) -> None:
    target = tmp_path / "target"
    done = cli("checkpoints", "copy", "big@20", "--to", target, root=tmp_path / "source")
    assert (done.code, done.out) == (0, "big@20: 7 of 7 objects copied (293.0 KiB), others were there\n")
    assert cli("checkpoints", "verify", "big", root=target).code == 0
    assert cli("checkpoints", "copy", "big@x", "--to", target, root=tmp_path / "source").code == 2
