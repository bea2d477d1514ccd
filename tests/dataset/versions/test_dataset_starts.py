"""Starts of datasets: what a start by name requests early is never believed, and leases are as safe."""

from collections.abc import Callable
from typing import Any

import pytest

import loader
from loader.dataset.log.dataset_starts import MOST_NUMBERS, dataset_start_path, parse_dataset_start
from loader.dataset.log.leases import list_leases
from loader.errors import Corrupt, Forbidden, NotARoot, VersionNotFound, VersionRetired
from tests.proxy_stores import ObservedStore, ProxyStore
from tests.refusals import refusal

START = dataset_start_path("photos")


def publish(root: loader.Root, number: int) -> loader.Version:
    with root.write("photos") as writer:
        writer.add(f"k{number}", {"cls": number})
    return writer.version


@pytest.fixture
def root(url: str) -> loader.Root:
    root = loader.Root(url)
    for number in (1, 2):
        publish(root, number)
    return root


def observe_root(url: str, before: Callable[[str, str], object] = lambda verb, key: None) -> loader.Root:
    reader = loader.Root(url)
    reader._use(ObservedStore(reader.store, before))
    return reader


def names(root: loader.Root) -> dict[str, str]:
    """Name -> version of the start, which has the log's manifests."""
    guesses = parse_dataset_start(root.store.get(START).data)
    for id, path in guesses.values():
        assert root.record(id).manifest == path
    return {name: root.record(id).name for name, (id, _) in guesses.items()}


def claims(root: loader.Root) -> list[tuple[str, ...]]:
    return [one.versions for one in list_leases(root.store)]


def test_start_has_the_names_of_the_log(root: loader.Root) -> None:
    both = {"1": "photos@1", "2": "photos@2"}
    assert names(root) == {**both, "latest": "photos@2"}
    root.tag("photos@1", "first")
    root.alias("photos@2", "prod")
    assert names(root) == {**both, "latest": "photos@2", "first": "photos@1", "prod": "photos@2"}
    root.alias("photos@1", "prod")
    root.retire("photos@2", reason="leaked")
    assert names(root) == {"1": "photos@1", "latest": "photos@1", "first": "photos@1", "prod": "photos@1"}


def test_start_has_the_newest_numbers(root: loader.Root) -> None:
    for number in range(3, MOST_NUMBERS + 3):
        publish(root, number)
    numbers = {int(name) for name in names(root) if name.isdigit()}
    assert numbers == set(range(3, MOST_NUMBERS + 3))
    assert loader.Root(root.url).open("photos@1").number == 1


def test_disk_has_no_starts(tmp_path: Any) -> None:
    root = loader.Root(tmp_path)
    publish(root, 1)
    root.tag("photos@1", "first")
    assert not (tmp_path / "starts").exists()
    reader = observe_root(str(tmp_path))
    reader.open("photos@first")
    assert START not in {key for _, key in reader.store.calls}


def test_change_that_changes_nothing_writes_no_start(url: str, root: loader.Root) -> None:
    root.alias("photos@1", "prod")
    writer = observe_root(url)
    writer.alias("photos@1", "prod")
    assert ("put", START) not in writer.store.calls


def test_version_is_published_if_its_start_cannot_be_stored(url: str, root: loader.Root) -> None:
    def put(store: Any, key: str, data: bytes) -> None:
        if key == START:
            raise Forbidden("no")
        store.put(key, data)

    writer = loader.Root(url)
    writer._use(ProxyStore(writer.store, put=put))
    publish(writer, 3)
    assert names(root)["latest"] == "photos@2"
    assert loader.Root(url).open("photos").number == 3


@pytest.mark.parametrize("ref", ["photos", "photos@latest", "photos@2", "photos@prod"])
def test_version_of_a_name_is_opened_from_its_start(url: str, root: loader.Root, ref: str) -> None:
    root.alias("photos@2", "prod")
    reader = observe_root(url)
    version = reader.open(ref)
    assert (version.name, version.reader) == ("photos@2", reader)
    calls = [key for verb, key in reader.store.calls if verb == "put"]
    assert len(calls) == 1
    manifest = ("get", root.record("photos@2").manifest)
    assert reader.store.calls.count(manifest) == 1
    assert claims(root) == [(version.id,)]
    assert reader.open(ref).id == version.id
    assert reader.store.calls.count(("get", START)) == 1, "a known log needs no guess"


@pytest.mark.parametrize(
    "start",
    [
        b"{",
        b"[]",
        b'{"format":1}',
        b'{"format":1,"manifests":{},"names":{"latest":"PHOTOS"}}',
        b'{"format":1,"manifests":[],"names":["latest"]}',
        b'{"format":1,"manifests":{"PHOTOS":"data/t/../manifest-NAME.json"},"names":{"latest":"PHOTOS"}}',
        b'{"format":1,"manifests":{"PHOTOS":"data/other/place/manifest-NAME.json"},"names":{"latest":"PHOTOS"}}',
        b'{"format":1,"manifests":{"PHOTOS":"data/other/place/manifest-NAME.json"},"names":{"latest":["PHOTOS"]}}',
        b'{"format":2,"manifests":{"PHOTOS":"data/other/place/manifest-NAME.json"},"names":{"latest":"PHOTOS"}}',
    ],
)
def test_start_is_not_believed(url: str, root: loader.Root, start: bytes) -> None:
    id = root.record("photos@2").id
    root.store.put(START, start.replace(b"PHOTOS", id.encode()).replace(b"NAME", id[2:18].encode()))
    root.store.put(f"data/other/place/manifest-{id[2:18]}.json", b"{}")
    reader = observe_root(url)
    assert reader.open("photos").manifest == root.open("photos@2").manifest
    assert not [key for _, key in reader.store.calls if "../" in key]


@pytest.mark.parametrize("guess", ["photos@1", "unknown", "retired"])
def test_wrong_guess_leaves_no_claim(url: str, root: loader.Root, guess: str) -> None:
    start = root.store.get(START).data
    newest, older = root.record("photos@2"), root.record("photos@1")
    if guess == "photos@1":
        start = start.replace(b'"latest":"' + newest.id.encode(), b'"latest":"' + older.id.encode())
    elif guess == "unknown":
        start = start.replace(newest.id.encode(), b"v-" + b"0" * 64).replace(
            newest.id[2:18].encode(), b"0" * 16
        )
    else:
        publish(root, 3)
        start = root.store.get(START).data
        root.retire("photos@3", reason="leaked")
    root.close()
    root.store.put(START, start)
    reader = observe_root(url)
    version = reader.open("photos")
    assert version.name == "photos@2"
    assert claims(root) == [(version.id,)]
    keys = {key for verb, key in reader.store.calls if verb == "put"}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("ref", "error"), [("photos@9", VersionNotFound), ("photos@1", VersionRetired), ("web", VersionNotFound)]
)
def test_name_without_a_version_leaves_no_claim(
    url: str, root: loader.Root, ref: str, error: type[Exception]
) -> None:
    stale = root.store.get(START).data
    root.retire("photos@1", reason="leaked")
    root.close()
    root.store.put(START, stale.replace(b'"2":', b'"9":'))
    reader = loader.Root(url)  # alive: a closed root has no claims
    with pytest.raises(error):
        reader.open(ref)
    assert claims(root) == []


def test_version_that_is_retired_before_the_lease_is_not_opened(url: str, root: loader.Root) -> None:
    """The first reading of the log lacks the retirement."""
    root.close()
    writer = loader.Root(url)

    reader = loader.Root(url)
    state = loader.Root.state

    def read_then_retire(root: loader.Root) -> Any:
        first = state.fget(root)
        if root is reader and not writer.record("photos@2", retired=True).retired:
            writer.retire("photos@2", reason="leaked")
        return first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader.Root, "state", property(read_then_retire))
        with refusal(VersionRetired, given="leaked"):
            reader.open("photos@2")
    assert claims(root) == []


def test_place_that_is_no_root_gets_no_lease(url: str, root: loader.Root) -> None:
    root.close()
    root.store.delete_many(["penstock.json"])
    reader = observe_root(url)
    with pytest.raises(NotARoot):
        reader.open("photos")
    assert "put" not in [verb for verb, _ in reader.store.calls]


@pytest.mark.parametrize("damaged", ["log", "manifest"])
def test_damage_leaves_no_claim(url: str, root: loader.Root, damaged: str) -> None:
    key = root.record("photos@2").manifest
    if damaged == "log":
        key = "log/000000000002.json"
    root.close()
    root.store.put(key, b"{")
    reader = loader.Root(url)  # alive: a closed root has no claims
    with pytest.raises(Corrupt):
        reader.open("photos")
    assert claims(root) == []
