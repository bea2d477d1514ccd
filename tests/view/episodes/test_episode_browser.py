"""Chromium over the episode's page: three cameras follow one cursor; keys, themes, narrow windows."""

import os
import subprocess
import sys

import numpy as np
import pytest

import loader
from penstock.view.episodes.open_episode import open_episode
from penstock.view.inspect.version_record import sample_fields
from tests.run.numbered_video import BITS, BLOCK
from tests.servers.chromium import chromium
from tests.servers.patience import PATIENCE_S
from tests.view.episodes.rig import HOSTILE, RATES, page_windows, write_rig
from tests.view.episodes.rig import episode_fields as rig_fields
from tests.view.test_browser import _CONTRAST, _FOREIGN, PREFIX, Viewer

pytestmark = pytest.mark.server
READY = "document.body.dataset.episodeReady === 'yes'"
NUMBERS = f"""[...document.querySelectorAll('.cam')].map((figure) => {{
    const video = figure.querySelector('video') ?? figure.querySelector('img:not([hidden])');
    if (!video) return figure.querySelector('.trouble').textContent;
    if (video.seeking) return 'seeking';
    const [width, height] = [video.videoWidth || video.naturalWidth, video.videoHeight || video.naturalHeight];
    const canvas = new OffscreenCanvas(width, height);
    if (!canvas.width) return 'no picture';
    const c = canvas.getContext('2d');
    c.drawImage(video, 0, 0);
    let number = 0;
    for (let bit = 0; bit < {BITS}; bit++) {{
        const level = c.getImageData(bit * {BLOCK} + {BLOCK // 2}, {BLOCK // 2}, 1, 1).data[0];
        number += level > 128 ? 1 << bit : 0;
    }}
    return number;
}})"""
CAPTIONS = """[...document.querySelectorAll('[data-frame]')]
    .map((one) => Number(one.textContent.match(/frame (\\d+)/)?.[1]))"""
CURSOR = "Number(document.querySelector('#ruler').getAttribute('aria-valuenow'))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A root with rig@1, whose second episode has a damaged camera, and the run `big`."""
    folder = tmp_path_factory.mktemp("episode") / "root"
    damaged = bytearray(rig_fields()["cam.left.mp4"])
    damaged[8:] = b"\0" * (len(damaged) - 8)
    raw = np.zeros((75, 64, 120, 3), np.uint8)
    with loader.Root(folder) as root:
        version = write_rig(root)
        plan = loader.plan(
            {"rig": page_windows(version, ("state.npy", "action.npy"))}, seed=3, global_batch=8
        )
        with loader.Loader(
            plan, framework="numpy", workers=0, steps=9, trail=loader.Trail(root, "big")
        ) as batches:
            for batch in batches:
                batches.note(loss=1.0 / (1 + batch.step))
        with root.write("bad") as writer:
            usual = rig_fields()
            usual["cam.left.mp4"] = bytes(damaged)
            del usual["cam.left.mp4.packets"]
            clock = np.arange(75, dtype=np.int64) * 40 * 10**6
            writer.add("ep", {**usual, "depth.npy": raw, "depth.ns.npy": clock})
        with root.write("near") as writer:
            for number in range(2):
                vector = np.array([1, number], np.float16)
                writer.add(f"ep/{number}", rig_fields(1, {}, **{"embedding.npy": vector}))
    return folder


@pytest.fixture(scope="module")
def viewer(folder, tmp_path_factory):
    command = [sys.executable, "-m", "penstock", "view", "big", "--root", str(folder), "--port", "0"]
    command += ["--prefix", PREFIX, "--allow-writes"]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = server.stdout.readline().strip()
        with chromium(tmp_path_factory.mktemp("chromium") / "profile") as page:
            yield Viewer(page, address)
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)


def open_page(viewer, path="/v/rig/1/s/0"):
    viewer.page.problems.clear()
    viewer.open(path, "At the cursor")
    viewer.page.wait_until("the episode stands", lambda: viewer.page.value_of(READY))


def wait_frames(viewer, expected):
    """Wait until the pictures show these frames, and their captions say so."""
    value = viewer.page.value_of
    viewer.page.wait_until(f"frames {expected} are shown", lambda: value(CAPTIONS) == expected)
    viewer.page.wait_until(
        f"pictures {expected} are shown, now {value(NUMBERS)}", lambda: value(NUMBERS) == expected
    )


def seek(viewer, share):
    """Click the ruler."""
    x, y, width = viewer.page.value_of(
        "(() => { const box = document.querySelector('#ruler').getBoundingClientRect(); "
        "return [box.x, box.y + box.height / 2, box.width]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        viewer.page.ask(
            "Input.dispatchMouseEvent", type=kind, x=x + width * share, y=y, button="left", clickCount=1
        )


def loader_frames(episode, at):
    """The frames of the three cameras that the loader takes."""
    return [int(episode.pick(f"cam.{name}.mp4", at, "action.npy").number[0]) for name in RATES]


@pytest.fixture(scope="module")
def episode(folder):
    with loader.Root(folder) as root:
        version = root.open("rig@1")
        yield open_episode(version, 0, sample_fields(version, [0])[0])


def test_cameras_show_the_loader_s_frames_seeking_stepping_and_playing(viewer, episode):
    open_page(viewer)
    wait_frames(viewer, [0, 0, 0])
    for share in (0.31, 0.777, 0.05, 0.999):
        seek(viewer, share)
        at = viewer.page.value_of(CURSOR)
        assert abs(at - share * 3e9) < 2e7
        wait_frames(viewer, loader_frames(episode, at))
    open_page(viewer, "/v/rig/1/s/0?t=1")
    wait_frames(viewer, loader_frames(episode, 10**9))
    for key, frame in ((".", 25), (".", 26), (",", 25), (",", 24), (",", 23)):
        viewer.press(key)
        at = episode.time_of("cam.left.mp4", frame)
        wait_frames(viewer, loader_frames(episode, at))
        assert viewer.page.value_of(CURSOR) == at
    viewer.press(" ")
    viewer.page.wait_until("it plays", lambda: viewer.page.value_of(CURSOR) > 1.6e9)
    viewer.press(" ")
    at = viewer.page.value_of(CURSOR)
    assert at > 1.6e9
    wait_frames(viewer, loader_frames(episode, at))
    viewer.page.wait_until(
        "the address holds the time",
        lambda: f"t={at / 1e9:.3f}"[:5] in viewer.page.value_of("location.search"),
    )
    assert viewer.page.problems == []


def test_values_language_and_windows_follow_the_cursor(viewer, episode):
    open_page(viewer, "/v/rig/1/s/0?row=75&run=big")
    text = viewer.page.text
    viewer.page.wait_for("row 75")
    viewer.page.wait_until("the text is escaped", lambda: HOSTILE[:-1] in text())
    state = episode.row("state.npy", 1500)
    shown = viewer.page.value_of(
        "[...document.querySelectorAll('[data-values=\"1\"] .v')].map((one) => Number(one.textContent))"
    )
    assert np.allclose(shown, state, atol=6e-4)
    assert viewer.page.value_of("document.images.length") == 0
    viewer.page.wait_for("windows, steps 0 to 8")
    viewer.page.value_of("document.querySelector('#runs details').open = true")
    viewer.page.click("step 0")
    there = f"location.pathname.startsWith({PREFIX + '/r/big/0/'!r})"
    viewer.page.wait_until("the browser is at step 0", lambda: viewer.page.value_of(there))
    assert viewer.page.problems == []


def test_keys_zoom_fold_and_normalise(viewer):
    open_page(viewer)
    value = viewer.page.value_of
    viewer.press("n")
    assert value("document.querySelector('#normalised').getAttribute('aria-pressed')") == "true"
    viewer.press("1")
    assert value("document.querySelector('.fold').getAttribute('aria-expanded')") == "false"
    viewer.press("1")
    assert value("document.querySelector('.fold').getAttribute('aria-expanded')") == "true"
    viewer.press("End")
    assert value(CURSOR) == 3 * 10**9
    viewer.press("Home", "ArrowRight")
    assert value(CURSOR) == 10**9
    lanes = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/lane/')).length"
    viewer.page.wait_until("lanes are read", lambda: value(lanes) == 2)
    viewer.press("+", "+")
    viewer.page.wait_until("lanes are read for the range", lambda: value(lanes) == 4)
    viewer.press("?")
    viewer.page.wait_for("fold a lane")
    viewer.press("Escape")
    assert viewer.page.problems == []


def test_damaged_camera_shows_its_error_and_the_others_play(viewer):
    open_page(viewer, "/v/bad/1/s/0?t=1")
    viewer.page.wait_until(
        "the healthy cameras stand", lambda: viewer.page.value_of(NUMBERS)[1:3] == [30, 29]
    )
    viewer.page.wait_until("raw images come from the server", lambda: viewer.page.value_of(NUMBERS)[3] == 0)
    assert "video" in viewer.page.value_of(NUMBERS)[0]
    viewer.press(" ")
    viewer.page.wait_until("it plays", lambda: viewer.page.value_of(CURSOR) > 1.5e9)
    viewer.press(" ")
    assert [one for one in viewer.page.problems if "404" not in one] == []


def test_frame_and_a_moment_that_failed_are_asked_for_again(viewer):
    """An outage ends: the picture comes back, and the message goes."""
    ask, value = viewer.page.ask, viewer.page.value_of
    open_page(viewer, "/v/bad/1/s/0")
    picture = "document.querySelector('[data-field=\"depth.npy\"] img')"
    viewer.page.wait_until("a frame is shown", lambda: value(f"{picture}.naturalWidth") == 120)
    ask("Network.enable")
    try:
        ask("Network.setBlockedURLs", urls=["*/frame/*", "*/moment*"])
        seek(viewer, 0.5)
        viewer.page.wait_until("an error is shown", lambda: "does not answer" in viewer.page.text())
        ask("Network.setBlockedURLs", urls=["*/frame/*"])
        seek(viewer, 0.7)
        viewer.page.wait_until("the picture is away", lambda: value(f"{picture}.hidden"))
        assert value("document.querySelector('#status').hidden")
    finally:
        ask("Network.setBlockedURLs", urls=[])
        ask("Network.disable")
    seek(viewer, 0.71)
    viewer.page.wait_until("the picture is back", lambda: not value(f"{picture}.hidden"))
    assert value("document.querySelector('[data-field=\"depth.npy\"] .trouble')") is None


def test_record_that_fails_is_said(viewer):
    ask = viewer.page.ask
    ask("Network.enable")
    try:
        ask("Network.setBlockedURLs", urls=["*.json*"])
        viewer.open("/v/rig/1/s/0", "The episode did not load: The viewer does not answer")
    finally:
        ask("Network.setBlockedURLs", urls=[])
        ask("Network.disable")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_is_readable_in_both_themes_and_narrow(viewer, theme):
    viewer.page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    for width in (1440, 420):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        viewer.page.ask("Emulation.setDeviceMetricsOverride", **size)
        open_page(viewer, "/v/rig/1/s/0?t=1.1")
        ratio, text = viewer.page.value_of(_CONTRAST.replace(".tokens,", ".tokens, .cam,"))
        assert ratio >= 4.5, text
        assert viewer.page.value_of("document.documentElement.scrollWidth <= innerWidth"), width
        assert viewer.page.value_of(_FOREIGN) == []
        assert viewer.page.problems == []
    viewer.page.ask("Emulation.clearDeviceMetricsOverride")


def test_key_and_button_lead_to_episodes_like_it(viewer):
    open_page(viewer, "/v/near/1/s/1")
    key = viewer.page.value_of("decodeURIComponent(document.body.dataset.key)")
    viewer.press("m")
    viewer.page.wait_for(f"like {key}", "2 found", "1.0000")
    open_page(viewer, "/v/near/1/s/1")
    viewer.page.value_of("document.querySelector('.actions a').click()")
    viewer.page.wait_for(f"like {key}", "2 found", "1.0000")
    # A vector of a whole episode has no clock, so it has no lane beside streams that have one.
    assert [one for one in viewer.page.problems if "/lane/embedding.npy" not in one] == []


def test_requests_of_a_page_are_few(viewer):
    open_page(viewer)
    requests = (
        "performance.getEntriesByType('resource').map((one) => one.name.replace(/.*\\/(?=[^/]*$)/, ''))"
    )
    both = ("state.npy", "action.npy")
    viewer.page.wait_until(
        "lanes are read",
        lambda: sum(name.startswith(both) for name in viewer.page.value_of(requests)) == 2,
    )
    viewer.page.wait_for("windows, steps")
    wait_frames(viewer, [0, 0, 0])
    names = viewer.page.value_of(requests)
    assert len([name for name in names if name.startswith("moment")]) <= 2
    assert sum(name.startswith(both) for name in names) == 2
    assert len(names) <= 20, names


def test_episode_is_excluded_by_keyboard(viewer, folder):
    with loader.Root(folder) as root, root.write("more") as writer:
        for number in range(2):
            writer.add(
                f"ep{number}", {"a.npy": np.zeros((4, 2)), "a.ns.npy": np.arange(4, dtype=np.int64) * 10**9}
            )
    open_page(viewer, "/v/more/1/s/0")
    viewer.press("b")
    viewer.page.wait_for("1 in the basket")
    viewer.press("x")
    viewer.page.wait_for("Exclude 1 sample")
    viewer.type("a drop")
    viewer.press("Tab")
    viewer.type("ada")
    viewer.press("Enter")
    viewer.at("/v/more/1/diff/2")
    with loader.Root(folder) as root:
        assert len(root.open("more@2")) == 1
