"""Raw objects: those below --raw are shown with a fixed media type, and no address leads out of it."""

import os

import pytest

import loader
from loader.errors import InvalidRuntime, ObjectNotFound
from penstock.view.raw_source import MOST_BYTES, RawSource
from penstock.view.web.media import MOST_DESCRIBED_BYTES
from tests.refusals import refusal
from tests.view import recipes
from tests.view.conftest import photo, train
from tests.view.test_web import Served


@pytest.fixture
def landing(tmp_path):
    """A folder of raw objects, beside one that is nobody's business."""
    folder = tmp_path / "landing"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1.jpg").write_bytes(photo(1))
    (folder / "page.html").write_bytes(b"<script>alert(1)</script>")
    (folder / "empty.bin").touch()
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "landing-2").mkdir()
    (tmp_path / "landing-2" / "x.jpg").write_bytes(b"secret")
    (folder / "link.jpg").symlink_to(tmp_path / "secret.txt")
    (folder / "out").symlink_to(tmp_path / "landing-2")
    return folder


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("end", ["", "/"])
def test_objects_below_the_place_are_read(root, landing, prefix, end):
    source = RawSource(root, f"{prefix}{landing}{end}")
    for spelled in ("", "file://"):
        assert source.read(f"{spelled}{landing}/a/1.jpg") == photo(1)
    assert source.read(f"{landing}/empty.bin") == b""
    assert source.nbytes(f"{landing}/page.html") == 25
    with pytest.raises(ObjectNotFound):
        source.read(f"{landing}/a/2.jpg")


@pytest.mark.parametrize(
    "uri",
    [
        "{0}/../secret.txt",
        "{0}/a/../../secret.txt",
        "{0}/./a/1.jpg",
        "{0}//a/1.jpg",
        "{0}-2/x.jpg",
        "{0}/link.jpg",
        "{0}/out/x.jpg",
        "{0}",
        "{0}/",
        "FILE://{0}/a/1.jpg",
        "http://127.0.0.1:1/x",
        "s3://bucket/{0}/a/1.jpg",
        "memory://landing/x",
        "/etc/passwd",
        "file:///etc/passwd",
        "a/1.jpg",
        "",
        "{0}/a\0/1.jpg",
    ],
)
def test_no_address_leads_out_of_the_place(root, landing, uri):
    with pytest.raises(InvalidRuntime):
        RawSource(root, str(landing)).read(uri.format(landing))


def test_objects_of_a_root_are_no_raw_objects(root, tmp_path, landing):
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    uri = f"{tmp_path}/root/penstock.json"
    with refusal(InvalidRuntime, what="raw object", where=uri, given="it lies in the root"):
        RawSource(root, str(tmp_path)).read(uri)


def test_pipe_causes_no_wait(root, landing):
    os.mkfifo(landing / "pipe.jpg")
    uri = f"{landing}/pipe.jpg"
    with refusal(InvalidRuntime, what="raw object", where=uri, given="it is not a file"):
        RawSource(root, str(landing)).read(uri)


def test_large_objects_are_not_fetched(root, landing):
    with (landing / "film.mp4").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    uri = f"{landing}/film.mp4"
    with refusal(InvalidRuntime, what="size", where=uri, given=MOST_BYTES + 1, accepted=MOST_BYTES):
        RawSource(root, str(landing)).read(uri)


@pytest.mark.parametrize("url", ["landing", "../landing", "/data/../etc"])
def test_place_is_written_in_full(root, url):
    with refusal(InvalidRuntime, what="--raw", given=url):
        RawSource(root, url)


def test_slot_page_shows_the_raw_object(root, landing, tmp_path):
    with root.write("photos", part_samples=5) as writer:
        uris = [f"{landing}/a/1.jpg", f"{landing}/page.html", f"file://{landing}/../secret.txt", ""]
        for i, uri in enumerate(uris):
            writer.add(f"p/{i}", {"jpg": photo(i), "cls": i}, source={"raw_uri": uri} if uri else {})
    version = root.open("photos@1")
    plan = loader.plan({"photos": version.select()}, seed=1, global_batch=4)
    train(root, plan, "one", recipe=recipes.plain, steps=1)
    slots = {key: slot for slot, (_, key) in enumerate(plan.batch_ids(0))}
    for raw in (None, str(landing)):
        with Served(tmp_path / "root", recipe=None, raw=raw) as served:
            answers = [served.get(f"/r/one/0/{slots[f'p/{i}']}/raw") for i in range(4)]
            pages = [served.get(f"/r/one/0/{slots[f'p/{i}']}").text for i in range(4)]
            samples = {key: f"/v/photos/1/s/{at}" for at, key in enumerate(version.keys(range(4)))}
            of_samples = [served.get(f"{samples[f'p/{i}']}/raw") for i in range(4)]
            assert [(one.status_code, one.content) for one in of_samples if one.status_code == 200] == [
                (one.status_code, one.content) for one in answers if one.status_code == 200
            ]
            assert [one.status_code for one in of_samples] == [one.status_code for one in answers]
            pictures = [served.get(samples[f"p/{i}"]).text.count('/raw"></span>') for i in range(4)]
            assert pictures == [int(raw is not None), 0, 0, 0]
        if raw is None:
            assert [one.status_code for one in answers] == [404] * 4
            assert all("--raw URL" in page for page in pages[:3])
            continue
        picture, page, outside, nothing = answers
        assert (picture.content, picture.headers["content-type"]) == (photo(1), "image/jpeg")
        assert page.headers["content-type"] == "application/octet-stream"
        assert page.headers["content-disposition"].startswith("attachment")
        assert page.headers["x-content-type-options"] == "nosniff"
        assert [outside.status_code, nothing.status_code] == [404, 404]
        assert b"secret" not in outside.content.replace(b"secret.txt", b"")
        assert '/raw"></span>' in pages[0]
        assert [f'/{slots[f"p/{i}"]}/raw"' in text for i, text in enumerate(pages)] == [
            True,
            True,
            False,
            False,
        ]
        assert "is not fetched: its address can be read in two ways" in pages[2]
        assert "Raw object" not in pages[3]


def test_object_that_no_browser_shows_is_told_in_lines(root, landing, tmp_path):
    (landing / "long.txt").write_text("x" * MOST_DESCRIBED_BYTES + "x")
    (landing / "note.txt").write_text("a note <b>\u202e of raw text")
    names = {"note": "note.txt", "long": "long.txt", "page": "page.html"}
    with root.write("texts") as writer:
        for key, name in names.items():
            writer.add(key, {"txt": "t"}, source={"raw_uri": f"{landing}/{name}"})
    keys = root.open("texts@1").keys(range(3))
    with Served(tmp_path / "root", recipe=None, raw=str(landing)) as served:
        pages = {key: served.get(f"/v/texts/1/s/{at}").text for at, key in enumerate(keys)}
    assert "a note &lt;b&gt;\\u202e of raw text" in pages["note"]
    assert "xxx" not in pages["long"]
    assert "1,048,577 bytes" in pages["long"]
    assert "<script>alert" not in pages["page"]
    assert "3c 73 63 72 69 70 74" in pages["page"], (
        "the first bytes of a kind that the loader does not decode"
    )
