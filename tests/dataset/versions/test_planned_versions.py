"""Versions of a saved plan, opened together: what is requested early is never believed, and leases are as safe."""

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

import loader
from loader.dataset.log.leases import list_leases
from loader.dataset.log.start_notes import parse_start_notes, plan_version_ids, start_path
from loader.errors import Corrupt, Forbidden, InvalidPlan, NotARoot, VersionNotFound, VersionRetired
from loader.order.random.plan_hash import content_hash, plan_json
from tests.proxy_stores import ObservedStore, ProxyStore
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

Observe = Callable[[str, str], object]


@pytest.fixture
def root(url: str) -> loader.Root:
    root = loader.Root(url)
    for name in ("photos", "web"):
        with root.write(name) as writer:
            for i in range(4):
                writer.add(f"k{i}", {"cls": i})
    return root


@pytest.fixture
def plan(root: loader.Root) -> loader.Plan:
    views = {name: root.open(name).select("cls") for name in ("photos", "web")}
    plan = loader.plan(views, seed=1, global_batch=2)
    plan.save(root)
    return plan


def observe_root(url: str, before: Observe) -> loader.Root:
    reader = loader.Root(url)
    reader._use(ObservedStore(reader.store, before))
    return reader


def claims(root: loader.Root) -> list[tuple[str, ...]]:
    return [one.versions for one in list_leases(root.store)]


def version_ids(plan: loader.Plan) -> list[str]:
    return plan_version_ids(plan.to_json())


def test_log_is_read_after_the_lease_of_all_versions(url: str, root: loader.Root, plan: loader.Plan) -> None:
    root.close()
    seen: list[list[tuple[str, ...]]] = []

    def record_claims(verb: str, key: str) -> None:
        if verb == "get" and key.startswith("log/0"):
            seen.append(claims(root))

    reader = observe_root(url, record_claims)
    opened = loader.open_plan(reader, plan.hash)
    assert opened == plan
    assert seen[-1] == [tuple(sorted(version_ids(plan)))]
    calls = [key for verb, key in reader.store.calls if verb == "put"]
    assert len(calls) == 1, "one lease for both"
    assert [view.version.reader for view in (opened.sources[name].view for name in opened.sources)] == [
        reader
    ] * 2


@pytest.mark.parametrize("is_collected", [False, True])
def test_version_that_is_retired_before_the_lease_is_not_opened(
    url: str, root: loader.Root, plan: loader.Plan, is_collected: bool
) -> None:
    """Also if a collector that did not see the lease deletes what is read beside it."""
    root.close()
    writer = loader.Root(url)

    def retire_at_put(verb: str, key: str) -> None:
        if (
            verb == "put"
            and key.startswith("leases/")
            and writer.record("web@1", retired=True).retired is None
        ):
            writer.retire("web@1", reason="leaked")
            if is_collected:
                folder = root.record("web@1", retired=True).manifest.rpartition("/")[0]
                root.store.delete_many([info.key for info in root.store.list(folder)])

    reader = observe_root(url, retire_at_put)
    with refusal(VersionRetired, given="leaked"):
        loader.open_plan(reader, plan.hash)
    photos = writer.record("photos@1").id
    assert claims(root) == [(photos,)], "only what was opened stays claimed"


def test_retired_versions_open_on_request(url: str, root: loader.Root, plan: loader.Plan) -> None:
    root.retire("web@1", reason="old")
    root.close()
    reader = loader.Root(url)
    assert loader.open_plan(reader, plan.hash, retired=True) == plan
    assert claims(root) == [tuple(sorted(version_ids(plan)))]


def store_plan(root: loader.Root, body: dict[str, Any]) -> str:
    plan_hash = content_hash("p", body)
    root.store.put(f"plans/{plan_hash}.json", plan_json(body))
    return plan_hash


def test_plan_of_an_unknown_version_leaves_no_claim(url: str, root: loader.Root, plan: loader.Plan) -> None:
    body = json.loads(json.dumps(plan.to_json()))
    body["sources"]["web"]["view"]["version"] = f"v-{'0' * 64}"
    forged = store_plan(root, body)
    reader = loader.Root(url)
    photos = reader.open("photos").id
    root.close()
    with pytest.raises(VersionNotFound):
        loader.open_plan(reader, forged)
    assert claims(root) == [(photos,)], "of an earlier open"


@pytest.mark.parametrize(
    "notes",
    [
        b"{",
        b"[]",
        b'{"format":1}',
        b'{"format":1,"manifests":["x"]}',
        b'{"format":1,"manifests":{"PHOTOS":7}}',
        b'{"format":1,"manifests":{"PHOTOS":"log/000000000001.json"}}',
        b'{"format":1,"manifests":{"PHOTOS":"data/t/../manifest-NAME.json"}}',
        b'{"format":1,"manifests":{"PHOTOS":"data/other/place/manifest-NAME.json"}}',
        b'{"format":2,"manifests":{"PHOTOS":"data/other/place/manifest-NAME.json"}}',
    ],
)
def test_notes_are_not_believed(
    url: str, root: loader.Root, plan: loader.Plan, notes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    id = root.record("photos@1").id
    notes = notes.replace(b"PHOTOS", id.encode()).replace(b"NAME", id[2:18].encode())
    root.store.put(start_path(plan.hash), notes)
    other = f"data/other/place/manifest-{id[2:18]}.json"
    root.store.put(other, b"{}")
    reader = observe_root(url, lambda verb, key: None)
    opened = loader.open_plan(reader, plan.hash)
    assert opened == plan
    assert opened.sources["photos"].view.version.manifest == root.open("photos").manifest
    early = {key for verb, key in reader.store.calls if verb == "get" and "/manifest-" in key}
    assert (other in early) == (other.encode() in notes and b'"format":1' in notes)
    assert "../" not in "".join(early)


def test_notes_state_what_the_log_states(root: loader.Root, plan: loader.Plan) -> None:
    notes = parse_start_notes(root.store.get(start_path(plan.hash)).data)
    assert notes == {root.record(name).id: root.record(name).manifest for name in ("photos", "web")}


def test_plan_is_saved_without_notes_if_they_cannot_be_stored(root: loader.Root) -> None:
    plan = loader.plan({"photos": root.open("photos")}, seed=2, global_batch=2)

    def put_if_absent(store: Any, key: str, data: bytes) -> None:
        if key.endswith(".start.json"):
            raise Forbidden("no")
        store.put_if_absent(key, data)

    store = root.store
    root.store = ProxyStore(store, put_if_absent=put_if_absent)
    plan.save(root)
    assert [info.key for info in store.list("plans/")] == [f"plans/{plan.hash}.json"]
    assert loader.open_plan(loader.Root(root.url), plan.hash) == plan


def test_root_that_does_not_know_the_versions_stores_no_notes(url: str, root: loader.Root) -> None:
    """It reads no log for them, and another place has no such version."""
    plan = loader.plan({"photos": root.open("photos")}, seed=3, global_batch=2)
    plan.save(loader.Root(url))
    other = loader.Root(f"{url}-other")
    plan.save(other)
    for saved in (root, other):
        assert [info.key for info in saved.store.list("plans/")] == [f"plans/{plan.hash}.json"]


def test_reader_without_rights_on_leases_opens_a_plan(url: str, root: loader.Root, plan: loader.Plan) -> None:
    root.close()

    def put(store: Any, key: str, data: bytes) -> None:
        raise Forbidden("no")

    reader = loader.Root(url)
    reader._use(ProxyStore(reader.store, put=put))
    assert loader.open_plan(reader, plan.hash) == plan
    assert claims(root) == []


def test_place_that_is_no_root_gets_no_lease(url: str, root: loader.Root, plan: loader.Plan) -> None:
    root.close()
    root.store.delete_many(["penstock.json"])
    reader = observe_root(url, lambda verb, key: None)
    with pytest.raises(NotARoot):
        loader.open_plan(reader, plan.hash)
    assert "put" not in [verb for verb, _ in reader.store.calls]


def test_plan_of_other_data_opens_in_a_place_that_is_no_root(url: str) -> None:
    place = loader.Root(f"{url}-place")
    place.store.put("notes.txt", b"someone's")
    plan = loader.plan({"none": loader.synthetic(100)}, seed=1, global_batch=2)
    plan.save(place)
    reader = observe_root(place.url, lambda verb, key: None)
    assert loader.open_plan(reader, plan.hash) == plan
    assert "put" not in [verb for verb, _ in reader.store.calls]


def test_missing_plan_is_named_before_anything_else(url: str, root: loader.Root) -> None:
    root.close()
    with refusal(InvalidPlan, what="plan", where=url, given="p-0"):
        loader.open_plan(loader.Root(url), "p-0")
    assert claims(root) == []


def test_damaged_log_leaves_no_claim(url: str, root: loader.Root, plan: loader.Plan) -> None:
    root.close()
    root.store.put("log/000000000002.json", b"{")
    with pytest.raises(Corrupt):
        loader.open_plan(loader.Root(url), plan.hash)
    assert claims(root) == []


def test_ctrl_c_does_not_wait_for_the_lease(
    url: str, root: loader.Root, plan: loader.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may not answer for a minute."""
    root.close()
    is_writing, is_over = Event(), Event()

    def hold_put(verb: str, key: str) -> None:
        if verb == "put":
            is_writing.set()
            assert is_over.wait(PATIENCE_S)

    def interrupt(root: loader.Root) -> None:
        assert is_writing.wait(PATIENCE_S)
        raise KeyboardInterrupt

    reader = observe_root(url, hold_put)
    with monkeypatch.context() as patch:
        patch.setattr(loader.Root, "state", property(interrupt))
        with pytest.raises(KeyboardInterrupt):
            loader.open_plan(reader, plan.hash)
    is_over.set()
    until(lambda: claims(root) != [])
    reader.close()
    assert claims(root) == []


def test_damaged_manifest_is_corrupt(url: str, root: loader.Root, plan: loader.Plan) -> None:
    path = root.record("web@1").manifest
    root.close()
    root.store.put(path, b"{}")
    with refusal(Corrupt, what="sha256", where=f"{url}/{path}"):
        loader.open_plan(loader.Root(url), plan.hash)


@pytest.mark.parametrize(
    "body", [None, [], {}, {"sources": []}, {"sources": {"a": 3, "b": {"view": {"version": "x"}}}}]
)
def test_no_version_is_in_damaged_json(body: object) -> None:
    assert plan_version_ids(body) == []


def test_versions_of_packed_and_listed_views_are_in_a_plan() -> None:
    id = f"v-{'1' * 64}"
    version = {"kind": "version", "version": id}
    views = {
        "packed": {"kind": "packed", "documents": {"kind": "listed", "view": version}},
        "windows": {"kind": "windows", "episodes": version},
    }
    assert plan_version_ids({"sources": {name: {"view": view} for name, view in views.items()}}) == [id]
