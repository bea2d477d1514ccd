"""Cut over: at no moment two places accept appends, whatever is killed, and nothing that was committed is lost."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

import loader
from loader.dataset.log.log import Log
from loader.dataset.log.snapshots import dump_state, load_state, write_hint
from loader.errors import Conflict, Corrupt, InvalidStore
from loader.storage import open_store
from penstock.cli import main
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import make_mirror, make_primary, migrate
from penstock.upkeep.migrate.promote import promote, promote_alone
from tests.mortal_store import Death, killed_runs
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal


@pytest.fixture(scope="module")
def kills(shared):
    return shared("penstock/promotion_kills")


def publish(root, key):
    with root.write("d") as writer:
        writer.add(key, {"x": key.encode()})
    return writer.version.id


@pytest.fixture(scope="module")
def template(tmp_path_factory, shared, kills):
    """A primary with two versions, and a mirror that has one of them."""
    folder = tmp_path_factory.mktemp("promote")
    kills.begin(shared("dataset/places").Disk(folder))
    return folder


@pytest.fixture
def places(template, tmp_path):
    """make() -> the URLs of a primary and of a mirror that lags, fresh ones."""

    def make(n=0):
        shutil.rmtree(tmp_path / str(n), ignore_errors=True)
        shutil.copytree(template, tmp_path / str(n))
        return str(tmp_path / str(n) / "a"), str(tmp_path / str(n) / "b")

    return make


@pytest.mark.parametrize("mistyped", ["c", "a/c"])
def test_promotion_refuses_a_place_that_is_no_mirror(places, tmp_path, mistyped):
    a, _ = places()
    target = open_store(tmp_path / "0" / mistyped)
    with refusal(Conflict, what="target", where=target.url, accepted=f"a mirror of {a}") as caught:
        promote(loader.Root(a), target, Pace())
    assert f"penstock migrate run {target.url} first" in str(caught.value)
    publish(loader.Root(a), "later")  # the primary stays open
    assert not list(target.list(""))


def test_mirror_becomes_the_primary_and_the_primary_its_mirror(places, capsys, kills):
    a, b = places()
    old, waiting = loader.Root(a), loader.Root(b)  # processes that have both open
    txn = old.begin("d")
    with refusal(Conflict, what="mirror", where=b):
        publish(waiting, "early")
    assert main(["migrate", "promote", b, "--root", a]) == 0
    assert "1 transactions were not committed" in capsys.readouterr().out
    kills.has_new_primary(a, b)
    with refusal(Conflict, what="former primary", where=a, accepted=b):
        publish(old, "late")
    with refusal(Conflict, what="former primary", where=a, accepted=b):
        old.abort(txn, "late")
    third = publish(waiting, "k2")
    urls = [one["url"] for one in waiting.state.mirrors]
    assert a in urls
    assert b not in urls
    assert main(["migrate", "status", a, "--root", b]) == 1
    assert main(["migrate", "run", a, "--root", b]) == 0
    assert loader.Root(a).open("d@3").id == third
    assert main(["migrate", "promote", b, "--root", a]) == 0  # again is not a change
    kills.has_new_primary(a, b)


def test_root_with_mirrors_writes_to_none_of_them_by_mistake(places):
    a, b = places()
    both = loader.Root(a, mirrors=[b])
    both.open("d@1")
    promote(loader.Root(a), open_store(b), Pace())
    publish(loader.Root(b), "k2")
    for root in (both, loader.Root(a, mirrors=[b])):
        with pytest.raises(Conflict):
            root.tag("d@1", "split")
    assert publish(loader.Root(b, mirrors=[a]), "k3")


def test_and_back_again_past_a_process_that_comes_late(places, kills):
    a, b = places()
    promote(loader.Root(a), open_store(b), Pace())
    first = loader.Root(b).state.primary.token
    publish(loader.Root(b), "k2")
    promote(loader.Root(b), open_store(a), Pace())
    kills.has_new_primary(b, a)
    make_primary(open_store(b), first)  # the first promotion's last step, of a process that was asleep
    assert kills.writers(a, b) == [a]
    publish(loader.Root(a), "k3")
    assert migrate(loader.Root(a), open_store(b), Pace()).failures == {}
    kills.has_new_primary(b, a)


@pytest.mark.parametrize("verb", ["get", "put"])
def test_run_that_was_begun_before_leaves_the_new_primary_one(places, verb, kills):
    a, b = places()
    marker = json.loads(open_store(b).get("penstock.json").data)
    open_store(b).put("penstock.json", json.dumps({**marker, "mirror_of": "s3://before"}).encode())
    promoted = []

    def promote_first(name, key):
        if (name, key) == (verb, "penstock.json") and not promoted:
            promoted.append(True)
            promote(loader.Root(a), open_store(b), Pace())

    make_mirror(open_store(a), ObservedStore(open_store(b), promote_first))
    assert promoted, "in the middle"
    kills.has_new_primary(a, b)


def test_killed_at_a_request(template, shared, kills, at_scale):
    """`make prove` kills at every request."""
    place, every = shared("dataset/places").Disk(template), at_scale(26, 13)
    assert kills.kill_everywhere(place, (range(1, 1000, every), range(7, 1000, every))) > 156 // every


def test_publisher_meanwhile_is_copied_or_refused(places, kills, at_scale):
    refused = copied = 0
    for k in range(1, 1000, at_scale(16, 8)):
        a, b = places()
        outcome = []

        def publish_meanwhile(a=a, outcome=outcome):
            outcome.append(None)
            try:
                outcome[0] = publish(loader.Root(a), "meanwhile")
            except Conflict as error:
                assert "was moved to" in str(error) or "is a mirror of" in str(error)  # noqa: PT017

        request = Death(k, die=publish_meanwhile)
        promote(kills.mortal_root(request, a), request.of(open_store(b)), Pace(), at_once=1)
        kills.has_new_primary(a, b)
        if not outcome:
            break
        ids = {one.id for one in loader.Root(b).versions("d")}
        assert len(ids) == 2 + (outcome[0] is not None)
        if outcome[0] is None:
            refused += 1
        else:
            copied += 1
            assert outcome[0] in ids
    assert refused > 0
    assert copied > at_scale(1, 3)


def test_moment_of_the_fence_decides(places, shared, kills):
    """A commit that is about to be written when the fence is; a fence that is when a commit is."""
    interrupted = shared("dataset/interrupted").interrupt_store
    a, b = places()
    late = interrupted(loader.Root(a), lambda: promote(loader.Root(a), open_store(b), Pace()))
    with refusal(Conflict, what="former primary", where=a, accepted=b):
        publish(late, "late")
    kills.has_new_primary(a, b)
    assert len(loader.Root(b).versions("d")) == 2
    a, b = places(1)
    done = []
    promote(
        interrupted(loader.Root(a), lambda: done.append(publish(loader.Root(a), "first")), "primary"),
        open_store(b),
        Pace(),
    )
    kills.has_new_primary(a, b)
    assert loader.Root(b).open("d@3").id == done[0]


def test_primary_that_is_gone(places, capsys):
    a, b = places()
    shutil.move(a, f"{a}-gone")
    assert main(["migrate", "promote", b, "--primary-is-gone"]) == 0
    assert "are lost" in capsys.readouterr().out
    publish(loader.Root(b), "instead")
    shutil.move(f"{a}-gone", a)  # it comes back, with a version that the mirror never had
    with refusal(Conflict, what="log/000000000005.json"):
        migrate(loader.Root(b), open_store(a), Pace())
    assert loader.Root(a).mirror_of is None
    with refusal(Conflict, what="marker", accepted="a mirror"):
        promote_alone(open_store(a))


def test_primary_that_comes_back_with_nothing_more_becomes_a_mirror(places, kills):
    a, b = places()
    migrate(loader.Root(a), open_store(b), Pace())
    open_in_time = loader.Root(a)
    promote_alone(open_store(b))
    publish(loader.Root(b), "k2")
    assert main(["migrate", "run", a, "--root", b]) == 0
    kills.has_new_primary(a, b)
    with pytest.raises(Conflict):
        publish(open_in_time, "late")
    assert a in [one["url"] for one in loader.Root(b).state.mirrors]


def test_killed_at_every_request_without_the_primary(places, kills):
    killed = 0
    for store, _, _ in killed_runs(promote_alone, lambda name: open_store(places()[1]), verbs=None):
        assert promote_alone(store).promoted
        assert kills.writers(store.url) == [store.url]
        killed += 1
    assert killed > 10


def test_what_cannot_be_copied_moves_nothing(places, kills):
    a, b = places()
    root = loader.Root(a)
    newest = root.open("d@2").parts.shard_rows().to_pylist()[-1]["path"]
    data = root.store.get(newest).data
    root.store.put(newest, data[:-1] + b"!")
    done = promote(root, open_store(b), Pace())
    assert (done.promoted, done.closed, list(done.failures)) == (False, 0, [newest])
    assert kills.writers(a, b) == [a]
    root.store.put(newest, data)
    assert promote(loader.Root(a), open_store(b), Pace()).promoted


def flip(store, key):
    """A digit of an entry's time; the last byte of another object."""
    data = store.get(key).data
    at = data.rindex(b"at_us") + 8 if key.startswith("log/") else len(data) - 1
    store.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return data


@pytest.mark.parametrize("what", ["log/000000000002.json", "shards.parquet", ".tar"])
@pytest.mark.parametrize("closed", [False, True])
def test_no_mirror_that_is_damaged_becomes_the_primary(places, kills, what, closed):
    """Before the log is closed nothing is; once it is, nobody is let in."""
    a, b = places()
    root, target = loader.Root(a), open_store(b)
    assert migrate(root, target, Pace()).failures == {}
    if closed:
        root.log.move(b)
    key = next(info.key for info in target.list() if info.key.endswith(what))
    whole = target.get(key).data
    write_hint(target, Log(target).state)  # by which the entries before it are not read
    if what == ".tar":
        target.put(key, whole[:-512])
    else:
        flip(target, key)
    done = promote(root, target, Pace())
    assert (done.promoted, bool(done.closed)) == (False, closed)
    assert any(key in f"{address} {why}" for address, why in done.failures.items())
    assert kills.writers(a) == ([] if closed else [a])
    target.put(key, whole)
    assert promote(loader.Root(a), target, Pace()).promoted
    target.delete_many([info.key for info in target.list("log/state-")])  # of a number that no hint has
    kills.has_new_primary(a, b)


def test_damaged_hint_keeps_no_mirror_from_becoming_the_primary(places, kills):
    a, b = places()
    open_store(b).put("log/state-000000000256.json", b"{")
    assert promote(loader.Root(a), open_store(b), Pace()).promoted
    open_store(b).delete_many(["log/state-000000000256.json"])
    kills.has_new_primary(a, b)


def test_no_log_that_is_damaged_is_appended_to_where_the_primary_is_gone(places, kills):
    _, b = places()
    target = open_store(b)
    write_hint(target, Log(target).state)
    whole, last = flip(target, "log/000000000002.json"), max(info.key for info in target.list("log/0"))
    with refusal(Corrupt, what="checksum", within="log/000000000002.json"):
        promote_alone(target)
    assert max(info.key for info in target.list("log/0")) == last
    target.put("log/000000000002.json", whole)
    assert promote_alone(target).promoted
    assert kills.writers(b) == [b]


@pytest.fixture
def replacing(s3, shared):
    """replacing(name) -> a store on a server that ignores the condition of a conditional create."""
    http = shared("servers/http")
    forward = http.forward_origin(s3["endpoint_url"])

    def origin(request):
        kept = {name: value for name, value in request.headers.items() if name != "if-none-match"}
        return forward(replace(request, headers=kept))

    server = http.HttpServer(origin)
    yield lambda name: open_store(f"s3://bucket/{name}", {**s3, "endpoint_url": server.endpoint})
    server.close()


def test_store_whose_creates_replace_becomes_no_primary(places, replacing, kills):
    """Two publishers there would lose a version. It is told before anything is closed."""
    a, b = places()
    before = loader.Root(a).state.primary
    with closing(replacing("liar")) as liar:
        assert not migrate(loader.Root(a), liar, Pace()).failures
        with refusal(InvalidStore, what="create-only write", where=liar.url):
            promote(loader.Root(a), liar, Pace())
        assert list(liar.list("heartbeats/")) == []
        assert liar.get("penstock.json").data.count(b"mirror_of") == 1  # which it may stay
    assert (before, loader.Root(a).state.primary) == (None, None)
    assert kills.writers(a) == [a]
    assert publish(loader.Root(a), "k2")
    assert promote(loader.Root(a), open_store(b), Pace()).promoted


def test_nor_does_it_where_the_primary_is_gone(places, replacing):
    a, _ = places()
    with closing(replacing("liar-alone")) as liar:
        assert not migrate(loader.Root(a), liar, Pace()).failures
        n = Log(liar).state.n
        with refusal(InvalidStore, what="create-only write", where=liar.url):
            promote_alone(liar)
        assert (Log(liar).state.n, Log(liar).state.primary) == (n, None)
        assert b"mirror_of" in liar.get("penstock.json").data


def test_mirror_and_another_place_are_refused(places, tmp_path, kills):
    a, b = places()
    with refusal(Conflict, what="root", where=f"{tmp_path}/0/b", accepted="the primary"):
        promote(loader.Root(b), open_store(str(tmp_path / "c")), Pace())
    loader.Root(a).log.move(b)  # and killed
    with refusal(
        Conflict, what="target", where=f"{tmp_path}/0/a", given=f"{tmp_path}/c", accepted=f"{tmp_path}/0/b"
    ):
        promote(loader.Root(a), open_store(str(tmp_path / "c")), Pace())
    assert kills.writers(a, b) == []


def test_hint_says_that_the_root_was_moved(places):
    a, b = places()
    promote(loader.Root(a), open_store(b), Pace())
    state = loader.Root(b).state
    data = dump_state(state)
    assert load_state(data) == state
    assert (
        b'"format":2,"state"' in data
    )  # a package that knows no moves reads the log instead, and meets the entry
    assert b'"format":1,"state"' in dump_state(Log(open_store("memory://unmoved")).state)
