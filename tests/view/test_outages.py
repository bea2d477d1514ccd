"""A store that refuses, hangs or fails under an open viewer: nobody waits twice, and nothing is started anew."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import loader
from loader.errors import Corrupt, Throttled, Transient
from penstock.view import open_items, outage, raw_source
from penstock.view.outage import Outage
from penstock.view.replays import replays
from penstock.view.replays.recipe_process import RecipeProcess
from penstock.view.replays.replayed_values import slot_itself
from penstock.view.replays.training import Training
from penstock.view.web.static_files import PATH
from tests.servers.patience import PATIENCE_S
from tests.view.conftest import DOWN, train
from tests.view.test_web import Served

PAGES = ["/r/one/2", "/r/one/2/3", "/v/photos/1", "/v/photos/1/s/3"]
SLICES = ["/slices", "/slices/photos/wide", "/v/photos/1?in=wide"]
"""Pages that read slices anew."""
MEDIA = ["/r/one/2/thumb/3/jpg", "/v/photos/1/s/3/thumb/jpg", "/v/photos/1/s/3/stored/jpg"]


@pytest.fixture
def serve(bucket):
    opened = []

    def serve(**more):
        opened.append(Served(loader.Root(bucket.url, options=bucket.options(**more)), recipe=None))
        return opened[-1]

    yield serve
    bucket.fail(None)
    for one in opened:
        one.close()


def together(served, paths):
    """Answers to requests that are made at once."""
    with ThreadPoolExecutor(len(paths)) as pool:
        return list(pool.map(served.get, paths))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=() if one in (503, "commit-stall") else pytest.mark.nightly) for one in DOWN],
)
def test_page_tells_the_store_and_what_to_do_and_comes_back_by_itself(serve, bucket, fault, monkeypatch):
    monkeypatch.setattr(outage, "OUTAGE_S", 0)
    served = serve(timeout_s=0.1 if fault == "commit-stall" else 20)
    assert 200 in (served.get("/r/one").status_code for _ in range(50))
    with bucket.down(fault):
        for path in ("/", *PAGES, *SLICES, *MEDIA):
            answer = served.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), path
            assert bucket.url in answer.text
        for path in ("/", *PAGES, *SLICES):
            assert "nothing needs a restart" in served.get(path).text
        assert all("by the trail of" in served.get(path).text for path in PAGES[:2])
        told = served.get("/r/one/2/3.json").json()
        assert told["error"] in ("Transient", "Throttled")
        assert told["recorded"]["notes"] == {"loss": 1.02}
        assert served.get(f"/{PATH}view.js").status_code == 200
    for path in ("/", *PAGES, *MEDIA):
        # A request of a store that is waited for 0.1 s fails now and then on a busy machine.
        assert 200 in (served.get(path).status_code for _ in range(50)), path


def test_root_without_rights_to_write_is_read_and_says_so(bucket):
    with loader.Root(bucket.url, options=bucket.options()) as root:
        root.save_slice("photos@1", "wide", "width > 42", by="ada", why="cut off")
    refusing = Served(loader.Root(bucket.url, options=bucket.options()), recipe=None, writes=True)
    try:
        # Whoever may read an object may ask for its head.
        bucket.server.fault_of = lambda request: None if request.method in ("GET", "HEAD") else 403
        for path in ("/", *PAGES, *SLICES):
            assert refusing.get(path).status_code == 200, path
        body = {"version": "photos@1", "name": "cats", "by": "ada", "why": "w", "page": "/", "keys": ["p/1"]}
        answer = refusing.post(body, "/slice")
        assert answer.status_code == 409
        assert "Forbidden" in answer.text
        bucket.server.fault_of = lambda _: 403
        page = refusing.get("/slices")
        assert page.status_code == 502
        assert "Forbidden" in page.text
        assert bucket.url in page.text
    finally:
        bucket.fail(None)
        refusing.close()


@pytest.mark.parametrize("stale", [False, True], ids=["samples", "plan"])
def test_pictures_of_one_step_wait_for_one_load(serve, bucket, stale, monkeypatch):
    monkeypatch.setattr(outage, "OUTAGE_S", 3600)
    served = serve()
    assert served.get("/r/one/1").status_code == 200
    if stale:
        monkeypatch.setattr(replays, "LEDGER_S", -1.0)
    before, begun = len(bucket.requests), threading.Event()
    bucket.server.fault_of = lambda _: begun.set() or 500
    found = together(served, [f"/r/one/2/thumb/{slot}/jpg" for slot in range(6)] * 4)
    assert begun.is_set()
    assert {one.status_code for one in found} == {503}
    assert len(bucket.requests) - before < 12  # three shards, read side by side


def test_store_that_is_known_to_be_down_is_asked_once(serve, bucket, monkeypatch):
    monkeypatch.setattr(outage, "OUTAGE_S", 3600)
    served = serve(retry_deadline_s=1e6)
    assert served.get("/r/one").status_code == 200
    served.opened.outage.note(Transient("the store is down"))
    bucket.fail(500)
    before = len(bucket.requests)
    answers = together(served, ["/", "/r/one/2", "/v/photos/1/s/3/thumb/jpg"])
    assert {one.status_code for one in answers} == {503}
    assert len(bucket.requests) - before < 6


def test_files_and_pages_in_memory_answer_while_all_pictures_wait(serve, bucket):
    served = serve()
    assert {served.get(path).status_code for path in ("/v/photos/1", "/r/one/2", "/r/one")} == {200}
    before = len(bucket.requests)
    with bucket.silent() as begun, ThreadPoolExecutor(60) as pool:
        paths = [f"/v/photos/1/s/{n % 14}/stored/jpg" for n in range(60)]
        found = [pool.submit(served.get, path) for path in paths]
        assert begun.wait(PATIENCE_S)
        for path in (f"/{PATH}view.js", "/r/one"):
            assert served.get(path).status_code == 200
        assert len(bucket.requests) - before < 60
        bucket.speak()
        assert {one.result().status_code for one in found} == {200}


def test_run_is_shown_as_it_was_read_and_says_so(serve, bucket, monkeypatch):
    monkeypatch.setattr(outage, "OUTAGE_S", 0)
    monkeypatch.setattr(open_items, "FRESH_S", -1.0)
    served = serve()
    assert served.get("/r/one.json").json()["stale"] == ""
    with bucket.down(500):
        page, body = served.get("/r/one"), served.get("/r/one.json").json()
        assert page.status_code == 200
        assert re.search(
            r"as it was read at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: cannot list s3://", page.text
        )
        assert body["n_steps"] == 6
        assert all("500" in one["error"] and not one["versions"] for one in body["starts"])
        stale = served.opened.training("one").stale
        assert stale[:50] == served.opened.training("one").stale[:50]
    with loader.Root(bucket.url, options=bucket.options()) as root:
        train(root, loader.plan_of(root, "one"), "one", steps=1)
    body = served.get("/r/one.json").json()
    assert (body["stale"], body["starts"][0]["versions"]) == ("", ["photos@1"])
    assert served.get("/r/one/0.json").json()["stale"] == ""


def test_mirrors_show_versions_without_the_primary(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(outage, "OUTAGE_S", 3600)
    monkeypatch.setattr(open_items, "FRESH_S", -1.0)
    for key, data in bucket.origin.held().items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    root = loader.Root(bucket.url, options=bucket.options(), mirrors=[str(tmp_path / "root")])
    served = Served(root, recipe=None)
    try:
        assert served.get("/r/one").status_code == 200
        bucket.fail(500)
        body = served.get("/r/one.json").json()
        assert "cannot list s3://" in body["stale"]
        told = served.get("/r/one/2")  # the ledger of its plan is the primary's
        assert told.status_code == 503
        assert "by the trail of" in told.text
        for path in (*PAGES[2:], *MEDIA[1:]):
            assert served.get(path).status_code == 200, path
    finally:
        served.close()


def test_raw_bucket_that_is_down_breaks_no_page(trained, bucket, monkeypatch):
    monkeypatch.setattr(raw_source, "PATIENCE_S", 0.0)
    monkeypatch.setattr(outage, "OUTAGE_S", 3600)
    for name, value in (
        ("ACCESS_KEY_ID", "k"),
        ("SECRET_ACCESS_KEY", "s"),
        ("ENDPOINT_URL", bucket.server.endpoint),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket.fail(500)
    served = Served(trained, recipe=None, raw="s3://raw")
    try:
        for path in ("/r/one/2/3", "/v/photos/1/s/3", "/v/photos/1/s/4"):
            answer = served.get(path)
            assert answer.status_code == 200
            assert "cannot look up s3://raw/" in answer.text
        asked = len(bucket.requests)
        assert 0 < asked < 3
        answer = served.get("/v/photos/1/s/3/raw")
        assert (answer.status_code, answer.headers["retry-after"], len(bucket.requests)) == (503, "5", asked)
        assert not served.opened.outage.is_known
        bucket.fail(None)
        bucket.origin.bucket = "raw"
        for number in range(14):
            bucket.origin.hold(f"{number}.jpg", b"raw bytes")
        served.opened.raw._outage._failure = None  # its seconds are over
        assert served.get("/v/photos/1/s/3/raw").content == b"raw bytes"
    finally:
        served.close()


def test_failure_is_told_for_a_few_seconds_and_not_longer(monkeypatch):
    clock, asked = [100.0], []
    monkeypatch.setattr(outage.time, "monotonic", lambda: clock[0])
    one = Outage()

    def fails(error):
        asked.append(error)
        raise error

    with pytest.raises(Corrupt):
        one.ask(lambda: fails(Corrupt("a page")))  # says nothing of the store
    assert not one.is_known
    with pytest.raises(Transient, match="first"):
        one.ask(lambda: fails(Transient("first")))
    for seconds in (0, 4.9):
        clock[0] = 100 + seconds
        with pytest.raises(Transient, match="first") as told:
            one.ask(lambda: pytest.fail("it is not asked"))
        one.note(told.value)  # as a page does: it lasts no longer for that
    clock[0] = 105.0
    assert one.ask(lambda: "it is back") == "it is back"
    one.note(Throttled("slower"))
    assert one.is_known
    clock[0] = 111.0
    assert not one.is_known


def test_recipe_reports_an_unreachable_store_and_continues(bucket, monkeypatch):
    """It has an answer before its own limit, which would end it, and would blame it."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "k")
    monkeypatch.setattr(outage, "OUTAGE_S", 3600)
    root = loader.Root(bucket.url, options=bucket.options(retry_deadline_s=1e6))
    known = Outage()
    recipe = RecipeProcess(root, "tests.view.recipes:recipe", limit_s=4, outage=known)
    training = Training(root, "one")
    try:
        setting = training.setting(1, recipe=True)
        assert recipe.slot(setting, 1, 0, slot_itself).trained
        process = recipe._process
        bucket.fail(500)
        with pytest.raises(Transient, match="the store answered 500"):
            recipe.slot(setting, 2, 0, slot_itself)
        assert known.is_known
        before = len(bucket.requests)
        with pytest.raises(Transient, match="the store answered 500"):
            recipe.slot(setting, 3, 0, slot_itself)
        assert len(bucket.requests) == before
        bucket.fail(None)
        known._failure = None  # its seconds are over
        assert recipe.slot(setting, 2, 0, slot_itself).trained
        assert recipe._process is process
    finally:
        bucket.fail(None)
        recipe.close()
        training.close()
        root.close()
