"""Where cards lie, and what making one costs."""

import json
import subprocess
import sys

import numpy as np
import pytest

import loader
from loader.dataset.names import card_folder
from loader.errors import Corrupt, FormatTooNew, InvalidRuntime
from penstock.card.build import build_card, card_files, read_card, save_card, write_card, write_html
from tests.refusals import refusal


@pytest.fixture
def own(tmp_path, media):
    """A small dataset for one test to change: three photos."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(3):
                writer.add(f"k{i}", {"jpg": media.jpeg(16, 16, (i, 0, 0))}, metadata={"kind": "image"})
        yield root


def test_card_is_created_once(own):
    version = own.open("d")
    card = build_card(own, version)
    saved = save_card(own.store, card)
    assert saved.folder == f"cards/d/000001-{version.id}" == card_folder("d", 1, version.id)
    assert saved.written == ("examples-image.jpg", "card.md", "card.html", "card.json")
    assert saved.kept == ()
    for name, data in card_files(card).items():
        assert own.store.get(f"{saved.folder}/{name}").data == data
    assert read_card(own.store, version) == saved.document == json.loads(card_files(card)["card.json"])
    assert save_card(own.store, card) == saved
    other = save_card(own.store, build_card(own, version, n_examples=1))
    assert set(other.kept) == {"examples-image.jpg", "card.md", "card.html", "card.json"}
    assert other.document == saved.document
    assert own.store.get(f"{saved.folder}/card.html").data == card_files(card)["card.html"]


def test_each_version_has_its_own(own, media):
    first = own.open("d@1")
    save_card(own.store, build_card(own, first))
    own.exclude("d", ["k1"], reason="blurred")
    second = own.open("d@2")
    save_card(own.store, build_card(own, second))
    assert (read_card(own.store, first)["samples"], read_card(own.store, second)["samples"]) == (3, 2)


@pytest.mark.parametrize(
    ("data", "error", "fault"),
    [
        (b"{", Corrupt, {"accepted": "a card"}),
        (b"[]", Corrupt, {"accepted": "a card"}),
        (b'{"card": 2, "version": "v-x"}', FormatTooNew, {"what": "format", "given": 2, "accepted": 1}),
        (b'{"card": 1, "version": "v-x"}', Corrupt, {"given": "v-x", "accepted": "d@1"}),
    ],
)
def test_another_file_in_its_place_is_refused(own, data, error, fault):
    version = own.open("d")
    own.store.put_if_absent(f"{card_folder('d', 1, version.id)}/card.json", data)
    with refusal(error, **fault):
        read_card(own.store, version)


def test_into_a_folder(own, tmp_path):
    card = build_card(own, own.open("d"))
    paths = write_card(tmp_path / "a" / "b", card)
    assert {path.name: path.read_bytes() for path in paths} == card_files(card)
    (tmp_path / "file").write_text("")
    with refusal(InvalidRuntime, what="path", where=tmp_path / "file/card.html", given="File exists"):
        write_html(tmp_path / "file" / "card.html", card)


def test_command(own, cli, tmp_path):
    root = own.url
    shown = cli("card", "d", root=root)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith('---\npretty_name: "d"\n')
    assert "](" not in shown.out  # what is printed has no files beside it
    page = tmp_path / "card.html"
    assert cli("card", "d", "--html", page, root=root).out == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>")
    lines = cli("card", "d@1", "--into", tmp_path / "card", "--save", root=root).out.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == [
        "examples-image.jpg",
        "card.md",
        "card.html",
        "card.json",
    ] * 2
    body = cli("card", "d", "--json", "--examples", "0", root=root).json
    assert (body["name"], body["samples"], body["examples"]) == ("d@1", 3, [])
    again = cli("card", "d", "--save", "--examples", "1", root=root).out
    assert again.count("holds another card and was not replaced") == 4
    assert cli("card", "d", "--examples", "-1", root=root).code == 2
    assert cli("card", "e", root=root).code == 2


def test_json_needs_no_template_engine(own, cli):
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from penstock.cli import main; sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "card", "d", "--root", own.url]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == cli("card", "d", "--json", root=own.url).json
    as_text = subprocess.run(command, capture_output=True, text=True, check=False)
    assert as_text.returncode == 2
    assert "pip install 'penstock-data[card]'" in as_text.stderr


class Counting:
    """A store that counts what is read, table files apart from shards."""

    def __init__(self, store):
        self.store, self.url, self.tables, self.media, self.requests = store, store.url, 0, 0, 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, key):
        blob = self.store.get(key)
        self.tables += len(blob.data) if "samples-" in key else 0
        self.requests += 1
        return blob

    def get_range(self, *args, **options):
        blob = self.store.get_range(*args, **options)
        self.media += len(blob.data)
        self.requests += 1
        return blob

    def get_ranges(self, key, spans, **options):
        blobs = self.store.get_ranges(key, spans, **options)
        self.media += sum(len(blob.data) for blob in blobs)
        self.requests += 1
        return blobs


@pytest.fixture(params=[200, 6000])
def cost(request, tmp_path):
    """What a card of so many samples of 2,000 bytes in ten parts reads, and the card."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=request.param // 10) as writer:
            for i in range(request.param):
                writer.add(f"k{i}", {"bin": b"%2000d" % i}, metadata={"kind": "text", "score": i})
        version = root.open("d")
        tables = sum(file["nbytes"] for file in version.manifest["samples"])
        version.store = store = Counting(root.store)
        card = build_card(root, version)
    return store, tables, card


def test_media_read_do_not_grow_with_the_dataset(cost):
    """Six examples, an index row group each at most; the tables at most twice, whatever is in them."""
    store, tables, card = cost
    assert card.samples in (200, 6000)
    assert len(card.examples) == 6
    assert store.tables <= 2 * tables
    assert store.requests <= 2 * 2 + 3 * 6 + 4
    assert store.media < 400_000


def test_quiet_terminal(own, capsys):
    build_card(own, own.open("d"))
    assert capsys.readouterr() == ("", "")


def test_batch_of_rows_is_all_that_is_unpacked(tmp_path, monkeypatch):
    """Rows of one file are counted batch by batch, and come out the same."""
    from penstock.card import scan

    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=50) as writer:
            for i in range(500):
                writer.add(
                    f"k{i}", {"cls": i}, metadata={"kind": "ab"[i % 2], "score": np.sin(i), "w": i % 7}
                )
        version = root.open("d")
        whole = build_card(root, version, n_examples=0)
        monkeypatch.setattr(scan, "BATCH_ROWS", 17)
        pieces = build_card(root, version, n_examples=0)
    assert [kind.samples for kind in pieces.kinds] == [kind.samples for kind in whole.kinds] == [250, 250]
    for a, b in zip(whole.columns, pieces.columns, strict=True):
        if a.numbers:
            assert (a.numbers.counts, a.numbers.edges) == (b.numbers.counts, b.numbers.edges)
            assert a.numbers.total == pytest.approx(b.numbers.total)
        assert a.counts == b.counts
