"""The episode's page over HTTP: which samples it shows, what its script gets, and at what cost."""

import json
import re
import struct
from itertools import pairwise
from urllib.parse import quote, unquote

import numpy as np
import pytest

import loader
from loader.modalities import encode
from loader.modalities.row_blocks import with_row_blocks
from penstock.view.episodes import verified_field
from penstock.view.episodes.open_episode import open_episode
from penstock.view.episodes.trained_windows import trained_windows
from penstock.view.inspect.version_record import sample_fields
from tests.run.numbered_video import read_numbers
from tests.view.conftest import write_photos
from tests.view.episodes.rig import episode_fields as fields_of_rig
from tests.view.episodes.rig import page_windows, write_rig
from tests.view.test_web import Served

RIG = "/v/rig/1/s/1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A root with rig@1 of two episodes, the run `big` on its windows, and photos."""
    folder = tmp_path_factory.mktemp("page") / "root"
    with loader.Root(folder) as root:
        version = write_rig(root, episodes=2)
        plan = loader.plan(
            {"rig": page_windows(version, ("state.npy", "action.npy"))}, seed=3, global_batch=8
        )
        trail = loader.Trail(root, "big", ranks="all")
        with loader.Loader(plan, framework="numpy", workers=0, steps=50, trail=trail) as batches:
            for batch in batches:
                losses = np.full(len(batch), 0.1 + batch.step % 3 / 100)
                losses[0] = np.nan if batch.step == 7 else losses[0]
                batches.note(loss=float(np.nanmean(losses)), per_sample={"loss": losses})
        write_photos(root, numbers=range(2))
    return folder


@pytest.fixture(scope="module")
def keys(folder):
    """Keys of rig@1, by ordinal."""
    with loader.Root(folder) as root:
        return root.open("rig@1").keys(range(2))


@pytest.fixture(scope="module")
def site(folder):
    server = Served(folder, recipe=None)
    yield server
    server.close()


@pytest.fixture
def requests(monkeypatch):
    """(offset, bytes) of each read of a field's range."""
    seen = []
    read = verified_field.VerifiedField._read

    def record_range(field, offset, nbytes):
        seen.append((offset, nbytes))
        return read(field, offset, nbytes)

    monkeypatch.setattr(verified_field.VerifiedField, "_read", record_range)
    return seen


def lane_columns(answer):
    """(times [n], lowest [dims, n], highest [dims, n]) of a lane's bytes."""
    assert answer.status_code == 200, answer.text
    n, dims, exact, _ = struct.unpack("<4I", answer.content[:16])
    times = np.frombuffer(answer.content, "<f8", n, 16)
    low = np.frombuffer(answer.content, "<f4", n * dims, 16 + 8 * n).reshape(dims, n)
    at = 16 + 8 * n + 4 * n * dims
    high = low if exact else np.frombuffer(answer.content, "<f4", n * dims, at).reshape(dims, n)
    assert len(answer.content) == at + (0 if exact else 4 * n * dims)
    return times, low, high


def test_only_a_sample_with_a_stream_opens_the_page(site):
    assert "At the cursor" in site.get(RIG).text
    assert "At the cursor" not in site.get("/v/photos/1/s/0").text
    record = site.get(f"{RIG}.json").json()
    assert [one["field"] for one in record["streams"]] == ["action.npy", "state.npy"]
    assert [one["name"] for one in record["cameras"]] == ["left", "right", "wrist"]
    assert (record["unit"], record["anchor"], record["n_rows"], record["n_keep"]) == (
        "s",
        "action.npy",
        150,
        125,
    )
    assert record["sample"]["fields"][0]["decoded"] is None


def test_hostile_names_and_texts_are_text(site):
    page = site.get(RIG).text
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "\u202e" not in page
    assert "style=" not in page
    assert "<script>" not in page
    assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []
    policy = site.get(RIG).headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_lane_holds_the_extremes_of_the_range(site, folder):
    with loader.Root(folder) as root:
        episode = open_episode(root.open("rig@1"), 1, sample_fields(root.open("rig@1"), [1])[0])
        state = np.concatenate([episode.row("state.npy", n)[None] for n in range(3000)])
    for begin, end, n_columns in ((0, 3 * 10**9, 100), (10**9, 2 * 10**9, 77), (5 * 10**8, 6 * 10**8, 2000)):
        query = f"from={begin}&to={end}&columns={n_columns}&first=0&stop=3"
        times, low, high = lane_columns(site.get(f"{RIG}/lane/state.npy?{query}"))
        first, last = begin // 10**6, min(2999, end // 10**6 + 1)
        assert times[0] == begin
        assert len(times) <= n_columns
        assert low.min(axis=1).tolist() == state[first : last + 1].min(axis=0).tolist()
        assert high.max(axis=1).tolist() == state[first : last + 1].max(axis=0).tolist()
        starts = (times / 10**6).astype(int).tolist()
        for at, (start, stop) in enumerate(zip(starts, [*starts[1:], last + 1], strict=True)):
            assert low[:, at].tolist() == state[start:stop].min(axis=0).tolist()
            assert high[:, at].tolist() == state[start:stop].max(axis=0).tolist()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{RIG}/lane/state.npy?first=0&stop=4", "dimensions"),
        (f"{RIG}/lane/state.npy?columns=5000", "columns"),
        (f"{RIG}/lane/state.npy?columns=0", "columns"),
        (f"{RIG}/lane/cam.left.mp4", "not a stream"),
        (f"{RIG}/lane/nothing.npy", "not a stream"),
        (f"{RIG}/frame/cam.left.mp4/72", "frames 0 to 71"),
        (f"{RIG}/frame/state.npy/0", "not a camera"),
        (f"{RIG}/moment?at=-1", "whole number"),
        (f"{RIG}/moment?by=1&of=nothing", "rows or frames"),
        (f"{RIG}/moment?by=1x&of=action.npy", "whole number"),
        (f"{RIG}/moment?anchor=nothing", "this episode has the streams action.npy, state.npy"),
        (f"{RIG}?row=150", "150 rows"),
        (f"{RIG}?t=NaN", "accepted: seconds"),
        (f"{RIG}?t=1e999999999", "accepted: seconds"),
        (f"{RIG}/../9", "samples 0 to 1"),
        ("/v/rig/1/window?key=ep/9@3", "<episode>@<row>"),
        ("/v/rig/1/window?key=ep/1", "accepted"),
        ("/v/photos/1/s/0/moment", "no stream"),
    ],
)
def test_wrong_request_is_refused(site, path, said):
    answer = site.get(path.replace("1/../", ""))
    assert answer.status_code == 404
    assert said in answer.text


def test_link_leads_to_a_time_to_a_row_and_to_a_window(site, keys):
    def start(path):
        return re.search(r'data-at="(\d+)"', site.get(path).text)[1]

    assert start(RIG) == "0"
    assert start(f"{RIG}?t=1.234567891") == "1234567891"
    assert start(f"{RIG}?t=99") == "3000000000"
    assert start(f"{RIG}?row=37") == str(37 * 20 * 10**6)
    assert start(f"{RIG}?row=37&anchor=state.npy") == str(37 * 10**6)
    answer = site.get(f"/v/rig/1/window?key={keys[1]}@37&run=big")
    assert (answer.status_code, answer.headers["location"]) == (303, "s/1?row=37&run=big")


def test_slot_of_windows_leads_to_its_window(site, folder, keys):
    with loader.Root(folder) as root:
        plan = loader.open_plan(root, loader.read_trail(root, "big").starts[0].plan)
        with loader.Loader(plan, framework="numpy", workers=0, steps=5) as batches:
            batch = list(batches)[4]
    for slot in (0, 5):
        episode, row = batch.ids[slot][-1].split("@")
        page = site.get(f"/r/big/4/{slot}").text
        assert f"v/rig/1/s/{keys.index(episode)}?run=big&amp;row={row}&amp;anchor=action.npy" in page


@pytest.mark.parametrize("step_s", [0.0, 1.0], ids=["by steps", "by windows"])
def test_trained_windows_are_those_of_the_steps(site, folder, keys, step_s, monkeypatch):
    monkeypatch.setattr("penstock.view.episodes.trained_windows.STEP_S", step_s)
    answer = site.get(f"{RIG}/trained?run=big").json()
    (run,) = answer["runs"]
    with loader.Root(folder) as root:
        plan = loader.open_plan(root, loader.read_trail(root, "big").starts[0].plan)
        expected = []
        with loader.Loader(plan, framework="numpy", workers=0, steps=50) as batches:
            for batch in batches:
                rows = [key.split("@") for *_, key in batch.ids]
                expected += [
                    (batch.step, slot, int(row)) for slot, (key, row) in enumerate(rows) if key == keys[1]
                ]
    assert sorted((one["step"], one["slot"], one["row"]) for one in run["windows"]) == sorted(expected)
    assert (run["searched"], run["error"]) == ("", "")
    assert {one["first_ns"] for one in run["windows"]} == {row * 20 * 10**6 for _, _, row in expected}
    bad = [(one["step"], one["slot"]) for one in run["windows"] if one["is_far"]]
    assert bad == [(step, slot) for step, slot, _ in expected if (step, slot) == (7, 0)]
    assert answer["failed"] == {}
    assert "InvalidName" in site.get(f"{RIG}/trained?run=..%2Fx").json()["failed"]["../x"]
    for level in {one["level"] for one in run["windows"]}:
        line = sorted((one["first_ns"], one["last_ns"]) for one in run["windows"] if one["level"] == level)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(line))


def test_list_of_trained_windows_is_html_with_links_of_the_page(site):
    windows = site.get(f"{RIG}/trained?run=big").json()["runs"][0]["windows"]
    text = site.get(f"{RIG}/trained?run=big", hx_request="true").text
    assert f"{len(windows)} windows, steps {windows[0]['step']} to {windows[-1]['step']}" in text
    assert f'href="../../../../r/big/{windows[0]["step"]}/{windows[0]["slot"]}"' in text
    assert f'data-seek="{windows[0]["at_ns"]}"' in text
    (drawn,) = re.findall('data-drawn="([^"]*)"', text)
    assert json.loads(unquote(drawn))["windows"] == windows
    failed = site.get(f"{RIG}/trained?run=%3Cb%3E", hx_request="true").text
    assert "&lt;b&gt;: InvalidName" in failed


def test_window_s_row_has_its_own_time(tmp_path):
    """A click on a row leads to it, not to the earliest value of its window."""
    with loader.Root(tmp_path / "root") as root:
        view = write_rig(root).select("state.npy", "action.npy")
        windows = loader.windows(
            view, anchor="action.npy", at={"state.npy": ["-100ms", 0], "action.npy": loader.rows(0, 5)}
        )
        plan = loader.plan({"rig": windows}, seed=3, global_batch=8)
        trail = loader.Trail(root, "late")
        with loader.Loader(plan, framework="numpy", workers=0, steps=3, trail=trail) as batches:
            for _ in batches:
                pass
    server = Served(tmp_path / "root", recipe=None)
    try:
        (run,) = server.get("/v/rig/1/s/0/trained?run=late").json()["runs"]
    finally:
        server.close()
    assert len(run["windows"]) == 24
    for one in run["windows"]:
        assert one["at_ns"] == one["row"] * 20 * 10**6
        assert one["first_ns"] == max(0, one["at_ns"] - 10**8)


@pytest.mark.parametrize(("step_s", "searched"), [(0.0, "the last 0 of 50 steps"), (1.0, "0 of 150 windows")])
def test_search_of_windows_ends_in_time(site, folder, monkeypatch, step_s, searched):
    monkeypatch.setattr("penstock.view.episodes.trained_windows.SEARCH_S", -1.0)
    monkeypatch.setattr("penstock.view.episodes.trained_windows.STEP_S", step_s)
    with loader.Root(folder) as root:
        version = root.open("rig@1")
        run = trained_windows(
            site.opened.training("big"), open_episode(version, 1, sample_fields(version, [1])[0])
        )
    assert (run.searched, run.windows) == (searched, ())


def test_frame_of_the_server_is_the_camera_s(site):
    import io

    from PIL import Image

    for number in (0, 5, 71):
        answer = site.get(f"{RIG}/frame/cam.left.mp4/{number}")
        picture = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))
        assert read_numbers(picture[None]) == [number]


def test_video_comes_in_parts_that_are_checked(site, requests):
    whole = site.get(f"{RIG}/stored/cam.right.mp4").content
    requests.clear()
    first = site.get(f"{RIG}/stored/cam.right.mp4", range="bytes=0-")
    assert first.status_code == 206
    assert first.headers["content-range"] == f"bytes 0-{len(whole) - 1}/{len(whole)}"
    assert first.content == whole
    n = len(requests)
    part = site.get(f"{RIG}/stored/cam.right.mp4", range="bytes=1000-1099")
    assert part.content == whole[1000:1100]
    assert len(requests) == n  # a small field is read once
    assert site.get(f"{RIG}/stored/cam.right.mp4", range="bytes=-10").content == whole[-10:]


def test_cost_does_not_grow_with_the_length(tmp_path, requests):
    """Two lengths of a 1 kHz stream, the second eight times the first: the same bytes, and requests by the pass."""
    costs = {}
    for n in (250_000, 2_000_000):
        requests.clear()
        with loader.Root(tmp_path / str(n)) as root, root.write("long") as writer:
            values = np.arange(n * 8, dtype=np.float32).reshape(n, 8)
            writer.add("ep", {"state.npy": values, "state.ns.npy": np.arange(n, dtype=np.int64) * 10**6})
        server = Served(tmp_path / str(n), recipe=None)
        try:
            page = server.get("/v/long/1/s/0")
            record = server.get("/v/long/1/s/0.json")
            opening = sum(nbytes for _, nbytes in requests)
            assert opening <= n * 8 + 64 * 2**10  # the clock and the head of the stream
            requests.clear()
            lane = server.get("/v/long/1/s/0/lane/state.npy?columns=1000&first=0&stop=8")
            costs[n] = len(page.content) + len(record.content), len(lane.content)
            assert sum(nbytes for _, nbytes in requests) == values.nbytes + 128
            requests.clear()
            for at in range(0, n * 10**6, n * 10**5):
                assert server.get(f"/v/long/1/s/0/moment?at={at}").status_code == 200
                server.get(f"/v/long/1/s/0/lane/state.npy?columns=1000&from={at}&to={at + 10**9}")
            assert len(requests) <= 20
            assert sum(nbytes for _, nbytes in requests) <= 20 * 3 * 2**16
        finally:
            server.close()
    (small, small_lane), (large, large_lane) = costs.values()
    assert abs(large - small) < 200
    assert small_lane <= 16 + 1000 * (8 + 2 * 4 * 8)
    assert large_lane <= 16 + 1000 * (8 + 2 * 4 * 8)


def test_damaged_camera_says_so_and_the_others_play(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        version = write_rig(root)
        at = open_episode(version, 0, sample_fields(version, [0])[0]).address.fields["cam.left.mp4"]
    path = tmp_path / "root" / at.path
    data = bytearray(path.read_bytes())
    data[at.offset + at.nbytes // 2] ^= 255
    path.write_bytes(data)
    server = Served(tmp_path / "root", recipe=None)
    try:
        page = "/v/rig/1/s/0"
        assert server.get(page).status_code == 200
        bad = server.get(f"{page}/stored/cam.left.mp4", range="bytes=0-")
        assert (bad.status_code, "CRC-32C" in bad.text) == (502, True)
        assert server.get(f"{page}/stored/cam.right.mp4", range="bytes=0-").status_code == 206
        statuses = [server.get(f"{page}/frame/cam.left.mp4/{n}").status_code for n in range(72)]
        assert statuses.count(502) in range(1, 9)  # the frames that need the damaged packet
        assert statuses.count(200) == 72 - statuses.count(502)
    finally:
        server.close()


def test_exclusion_removes_the_episode(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        key = write_rig(root, episodes=2).keys([1])[0]
    server = Served(tmp_path / "root", recipe=None, writes=True)
    try:
        page = server.get(RIG).text
        assert 'data-version="rig@1" data-key="ep%2F' + key[3:] in page
        body = {
            "samples": [{"version": "rig@1", "key": key}],
            "reason": "drops the cup",
            "by": "ada",
            "page": RIG,
        }
        assert server.post(body).json()["versions"] == ["rig@2"]
        sample = server.get("/v/rig/2/s/0.json").json()["sample"]
        assert sample["n_samples"] == 1
        assert sample["key"] != key
    finally:
        server.close()


def test_long_stream_with_row_blocks_opens_in_parts(tmp_path, requests, monkeypatch):
    """Every lane reads for a limited time, the cursor's values come at once, and the lane is that of one pass."""
    n = 900_000
    values = np.random.default_rng(3).standard_normal((n, 4)).astype(np.float32)
    fields = {"state.npy": encode("state.npy", values)}
    fields["state.ns.npy"] = encode("state.ns.npy", np.arange(n, dtype=np.int64) * 10**6)
    with loader.Root(tmp_path / "root") as root:
        for dataset, own in (("long", with_row_blocks(fields)), ("plain", fields)):
            with root.write(dataset) as writer:
                writer.add("ep", own)
    monkeypatch.setattr("penstock.view.web.episode_pages.LANE_S", -1.0)
    server = Served(tmp_path / "root", recipe=None)
    try:
        lane = "s/0/lane/state.npy?columns=500&first=0&stop=4"
        whole = server.get(f"/v/plain/1/{lane}").content
        server.get("/v/long/1/s/0")
        requests.clear()
        (track,) = server.get("/v/long/1/s/0/moment?at=450000000000").json()["tracks"]
        assert np.array_equal(track["values"], values[450_000])
        assert sum(nbytes for _, nbytes in requests) <= 2**16
        read, parts = [], []
        while not parts or parts[-1] < 100:
            requests.clear()
            content = server.get(f"/v/long/1/{lane}").content
            read.append(sum(nbytes for _, nbytes in requests))
            parts.append(struct.unpack("<4I", content[:16])[3])
        assert parts == [25, 50, 75, 100]
        assert max(read) <= 2**22 + 2**18
        assert content == whole
    finally:
        server.close()


def test_page_names_its_slices(folder, keys, tmp_path):
    with loader.Root(folder) as root:
        root.save_slice("rig@1", "shaky", [1], by="ann", why="the camera moves")
        served = Served(root, recipe=None)
        try:
            pages = [served.get(f"/v/rig/1/s/{ordinal}").text for ordinal in (0, 1)]
        finally:
            served.close()
    assert ["<b>shaky@1</b>" in page for page in pages] == [False, True]
    assert "the camera moves" in pages[1]


def test_page_leads_to_episodes_like_it(site, tmp_path):
    with loader.Root(tmp_path / "root") as root, root.write("near") as writer:
        for number in range(2):
            vector = np.array([1, number], np.float16)
            writer.add(f"ep/{number}", fields_of_rig(1, {}, **{"embedding.npy": vector}))
    own = Served(tmp_path / "root", recipe=None)
    try:
        page = own.get("/v/near/1/s/0").text
    finally:
        own.close()
    with loader.Root(tmp_path / "root") as root:
        (key,) = root.open("near").keys([0])
    assert f'<a class="button" href="../../../../v/near/1?like={quote(key, "")}">More like this' in page
    assert "More like this" not in site.get(RIG).text, "its version has nothing to compare"
