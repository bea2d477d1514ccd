"""A damaged checkpoint is named, set aside with all its bytes, and the one before it loads."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import loader
from loader.errors import CheckpointNotFound, Corrupt, CorruptCheckpoint, Forbidden, StoreError, Transient
from loader.storage import Store
from penstock.checkpoints import Checkpoints, marker
from penstock.checkpoints.listing import list_steps
from penstock.checkpoints.set_aside import set_aside
from tests.refusals import refusal
from tests.servers.http import HttpServer
from tests.servers.s3 import SmallS3

MARKER = "checkpoints/a/steps/000000000020.json"
KINDS = (
    *("missing part", "truncated part", "flipped byte", "part of another run", "emptied part"),
    *("broken marker", "emptied marker", "marker of another run", "damaged index", "missing index"),
)
OBJECT = {
    "part": ".safetensors",
    "byte": ".safetensors",
    "run": ".safetensors",
    "index": "-index.json",
}
"""Last word of a kind -> ending of the object that it damages, unless it is the marker."""


def state(fill: float = 0.0, size: int = 5000) -> dict[str, object]:
    return {"w": torch.full((size,), fill), "n": {"step": int(fill)}}


def damage(store: Store, kind: str) -> str:
    """Damage the checkpoint of step 20 of run "a"; return the key of the object."""
    key = MARKER
    if "marker" not in kind:
        ending = OBJECT[kind.rpartition(" ")[2]]
        keys = [info.key for info in store.list("checkpoints/a/parts/000000000020/")]
        key = next(key for key in keys if key.endswith(ending))
    data = bytearray(store.get(key).data)
    if kind.startswith("missing"):
        store.delete_many([key])
        return key
    if kind == "marker of another run":
        data = bytearray(store.get(MARKER.replace("/a/", "/b/")).data)
    elif kind == "part of another run":
        other = [info.key for info in store.list("checkpoints/b/parts/000000000020/")]
        data = bytearray(store.get(next(key for key in other if key.endswith(".safetensors"))).data)
    elif kind.startswith("truncated"):
        del data[len(data) // 2 :]
    elif kind.startswith("emptied"):
        data.clear()
    else:
        data[-100] ^= 1
    store.put(key, bytes(data))
    return key


@pytest.fixture(params=["disk", "s3"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[loader.Root]:
    """Steps 10 and 20 of the runs "a" and, of another size, "b"."""
    if request.param == "disk":
        root = loader.Root(tmp_path / "root")
        save_steps(root)
        yield root
        return
    server = HttpServer(SmallS3())
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "planted")
    root = loader.Root("s3://bucket/root")
    save_steps(root)
    yield root
    server.close()


def save_steps(root: loader.Root) -> None:
    for run, size in (("a", 5000), ("b", 7000)):
        with Checkpoints(root, run) as saved:
            for step in (10, 20):
                saved.save(step, state(step, size))


def bytes_of(store: Store, prefix: str) -> dict[str, bytes]:
    return {info.key: store.get(info.key).data for info in store.list(prefix)}


def damaged(root: loader.Root) -> CorruptCheckpoint:
    with pytest.raises(CorruptCheckpoint) as raised:
        Checkpoints(root, "a").load(state())
    return raised.value


@pytest.mark.parametrize(
    ("root", "kind"),
    [*(("disk", kind) for kind in KINDS), *(("s3", kind) for kind in KINDS if kind.endswith("part"))],
    indirect=["root"],
)
def test_damage_is_named_and_set_aside(root: loader.Root, kind: str) -> None:
    key = damage(root.store, kind)
    error = damaged(root)
    assert (error.run, error.step) == ("a", 20)
    assert key in str(error)
    assert "penstock checkpoints set-aside a@20" in str(error)
    before = bytes_of(root.store, "checkpoints/a/parts/000000000020/")
    saved = Checkpoints(root, "a", keep_last=1)
    aside = saved.set_damaged_aside(error, by="a test")
    assert key in aside.reason
    filled = state()
    loaded = saved.load(filled)
    assert loaded is not None
    assert loaded.step == 10
    assert torch.equal(filled["w"], torch.full((5000,), 10.0))  # type: ignore[arg-type]
    for step in (20, 30):  # the second one deletes the first, and nothing of what was set aside
        saved.save(step, state(step))
        kept = bytes_of(root.store, "checkpoints/a/parts/000000000020/")
        assert before.items() <= kept.items()
    row = next(row for row in list_steps(root.store, "a") if row.set_aside)
    assert (row.step, row.nbytes >= sum(map(len, before.values()))) == (20, True)
    assert "set aside by a test" in row.problem
    records = set(kept) - set(before)
    assert len(records) == 1, "nothing else of the step that was saved again stays"


def test_step_is_set_aside_by_itself_once(root: loader.Root) -> None:
    saved = Checkpoints(root, "a")
    damage(root.store, "emptied marker")
    saved.set_damaged_aside(damaged(root), by="a test")
    saved.save(20, state(20))
    damage(root.store, "emptied marker")
    with refusal(Corrupt, what="step", given=20, accepted="a checkpoint that was not set aside"):
        saved.set_damaged_aside(damaged(root), by="a test")
    assert saved.steps() == [10, 20]
    set_aside(root.store, "a", 20, by="ann", reason="again")
    assert saved.steps() == [10]
    assert [row.set_aside for row in list_steps(root.store, "a")] == [False, True, True]


def test_checkpoint_that_is_intact_elsewhere_is_not_set_aside(root: loader.Root) -> None:
    """A node that reads wrong bytes damages no checkpoint."""
    key = damage(root.store, "flipped byte")
    error = damaged(root)
    data = bytearray(root.store.get(key).data)
    data[-100] ^= 1
    root.store.put(key, bytes(data))
    with refusal(Corrupt, what="checkpoint", where="a@20", given="intact"):
        Checkpoints(root, "a").set_damaged_aside(error, by="a test")
    assert Checkpoints(root, "a").steps() == [10, 20]


def test_only_checkpoint_is_not_set_aside_by_itself(root: loader.Root) -> None:
    root.store.delete_many([marker.marker_key("a", 10)])
    damage(root.store, "truncated part")
    with pytest.raises(CorruptCheckpoint) as raised:
        Checkpoints(root, "a").set_damaged_aside(damaged(root), by="a test")
    assert "nothing was set aside" in "".join(raised.value.__notes__)
    assert Checkpoints(root, "a").steps() == [20]


def test_set_aside_that_was_killed_is_completed(root: loader.Root) -> None:
    data = root.store.get(MARKER).data
    first = set_aside(root.store, "a", 20, by="ann", reason="the loss jumps", automatic=True)
    root.store.put(MARKER, data)  # as if the call had been killed before it deleted the marker
    second = set_aside(root.store, "a", 20, by="bob", reason="later", automatic=True)
    assert second == first
    assert Checkpoints(root, "a").steps() == [10]
    with refusal(CheckpointNotFound, what="step", where=f"{root.url}: run 'a'", given=20):
        set_aside(root.store, "a", 20, by="ann", reason="twice")


def test_checkpoint_that_was_deleted_meanwhile_is_not_damaged(root: loader.Root) -> None:
    saved = Checkpoints(root, "a")
    checkpoint = saved.at(20)
    root.store.delete_many([MARKER, *(checkpoint.key(part) for part in checkpoint.objects)])
    with pytest.raises(CheckpointNotFound):
        saved._index(checkpoint)


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (503, StoreError)])
def test_error_of_the_store_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    root = loader.Root(tmp_path / "root")
    save_steps(root)

    def refuse(*arguments: object, **options: object) -> None:
        raise Forbidden("403") if status == 403 else Transient("503")

    for verb in ("read_into", "get_range", "get_ranges"):
        monkeypatch.setattr(root.store, verb, refuse)
    with pytest.raises(error) as raised:
        Checkpoints(root, "a").load(state())
    assert not isinstance(raised.value, Corrupt)
    assert Checkpoints(root, "a").steps() == [10, 20]


def test_verb_sets_a_checkpoint_aside(tmp_path: Path, cli: Callable[..., SimpleNamespace]) -> None:
    root = loader.Root(tmp_path / "root")
    save_steps(root)
    asked = cli("checkpoints", "set-aside", "a@20", "--reason", "the loss jumps", root=root.url)
    assert asked.code == 0
    assert "a@20 was set aside with" in asked.out
    assert "goes on at step 10" in asked.out
    listed = cli("checkpoints", "ls", "a", root=root.url)
    assert listed.code == 0
    assert "the loss jumps" in listed.out
    rows = cli("checkpoints", "ls", "a", "--json", root=root.url).json
    assert [(row["step"], row["set_aside"]) for row in rows] == [(10, False), (20, True)]
    assert cli("checkpoints", "set-aside", "a@20", "--reason", "x", root=root.url).code != 0
