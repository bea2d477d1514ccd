"""Costs of a version's page and of clicks in its facets, as a browser asks for them: requests, rows, bytes."""

import gzip
import re
from html import unescape
from urllib.parse import urljoin

import numpy as np
import pytest

import loader
from benchmarks.exchange import documents
from penstock.formats.registration.register import register
from penstock.view.facets import column_codes, spread_rows, version_columns
from penstock.view.web import version_page
from tests.view.test_costs import Counted
from tests.view.test_web import Served

SIZES = (300, 6_000)
MOST_REQUESTS, MOST_SPREAD_REQUESTS = 8, 10
HTML_BYTES, CLICK_BYTES = 60_000, 30_000
CLICK = "/v/d/1?t=%22label%22+%3D+%27cat%27"
AS_SCRIPT = {"hx_request": "true"}


def write(folder, n):
    """Publish d@1 of n samples with 50 columns, and d@2 without one of them."""
    rng = np.random.default_rng(1)
    columns = {f"number_{i}": rng.normal(size=n).tolist() for i in range(44)}
    columns |= {f"kind_{i}": rng.integers(0, 5 + 50 * i, n).tolist() for i in range(4)}
    with loader.Root(folder) as root:
        with root.write("d") as writer:
            for i in range(n):
                metadata = {name: values[i] for name, values in columns.items()}
                metadata |= {f"kind_{j}": f"kind {columns[f'kind_{j}'][i]}" for j in range(4)}
                metadata |= {"label": ("cat", "dog", "owl")[i % 3], "caption": f"a text of {i}"}
                writer.add(f"k{i:05d}", {"cls": i % 3}, metadata=metadata)
        root.exclude("d@1", ["k00007"], reason="blurred")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    for n in SIZES:
        made.append(tmp_path_factory.mktemp("wide") / "root")
        write(made[-1], n)
    return made


@pytest.fixture
def serve_root(monkeypatch):
    """Return a function that serves a root by a server just started, and counts its requests to the store."""
    # Small versions then cost what large ones do.
    monkeypatch.setattr(version_page, "MOST_CELLS_NOW", 0)
    opened = []

    def serve(folder):
        root = loader.Root(folder)
        store = Counted(root.store)
        root._use(store)
        opened.append(Served(root, recipe=None))
        return opened[-1], store

    yield serve
    for one in opened:
        one.close()


def test_first_page_reads_no_column_at_any_size(folders, serve_root):
    requests = []
    for folder in folders:
        server, store = serve_root(folder)
        page = server.get("/v/d/1")
        assert len(page.content) < HTML_BYTES
        assert store.nbytes["samples-"] == 0
        # Every process reads the root's log first.
        requests.append(sum(not key.startswith(("log/", "penstock.json")) for key in store.keys))
        counts = dict(re.findall(r"<li>.*<span>(cat|dog|owl)</span><b>([\d,]+)", page.text))
        assert sum(int(count.replace(",", "")) for count in counts.values()) in SIZES
    assert requests[0] == requests[1] <= MOST_REQUESTS


def test_first_page_is_eight_requests_of_a_browser(folders, serve_root):
    server, _ = serve_root(folders[0])
    page = server.get("/v/d/1").text
    linked = re.findall(r'<(?:link|script)[^>]+(?:href|src)="([^"]+)"', page)
    waiting = [urljoin("/v/d/1", address) for address in linked]
    files = set()
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        answer = server.get(path)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True), path
        if path.endswith(".js"):
            waiting += [urljoin(path, name) for name in re.findall(r'from "(\./[^"]+)"', answer.text)]
    assert any(path.endswith("basket.js") for path in files), "scripts that a script imports count"
    assert 1 + len(files) <= MOST_REQUESTS
    later = server.get("/v/d/1?from=60").text
    assert re.findall(r'<(?:link|script)[^>]+(?:href|src)="([^"]+)"', later) == linked, (
        "a browser has them all"
    )


def test_script_asks_once_for_the_facets_that_need_a_read(folders, serve_root):
    server, store = serve_root(folders[1])
    page = server.get("/v/d/1").text
    (address,) = re.findall(r'hx-get="([^"]*)" hx-trigger="load"', page)
    assert 'class="hist"' not in page
    counted = server.get("/v/d/1" + unescape(address), **AS_SCRIPT).text
    assert counted.count('class="hist"') == 3, "with label and four kinds, eight facets are drawn"
    assert 'hx-trigger="load"' not in counted
    store.requests.clear()
    assert 'hx-trigger="load"' not in server.get("/v/d/1").text, "their codes are cached now"
    assert sum(store.requests.values()) == 0


def test_cards_name_labels_that_are_read_anyway(folders, serve_root):
    server, store = serve_root(folders[1])
    label = re.compile("<div>.*<span>cat</span>")
    assert not label.search(server.get("/v/d/1").text)
    assert label.search(server.get("/v/d/1?counted=1").text)
    store.requests.clear()
    assert label.search(server.get("/v/d/1").text)
    assert sum(store.requests.values()) == 0


def test_page_with_exclusions_counts_later_and_then_live_samples(folders, serve_root):
    server, store = serve_root(folders[0])
    page = server.get("/v/d/2").text
    assert store.nbytes["samples-"] == 0
    assert 'class="values"' not in page, "stored statistics count the excluded sample"
    counted = server.get("/v/d/2?counted=1").text
    counts = re.findall(r"<li>.*<span>(?:cat|dog|owl)</span><b>(\d+)", counted)
    assert sum(map(int, counts)) == SIZES[0] - 1


def test_click_reads_its_columns_once_and_is_small_on_the_wire(folders, serve_root):
    for folder in folders:
        server, store = serve_root(folder)
        plain = server.get(CLICK, **AS_SCRIPT)
        assert store.nbytes["samples-"] > 0
        store.requests.clear()
        sent = server.get(CLICK, accept_encoding="gzip", **AS_SCRIPT)
        assert sum(store.requests.values()) == 0
        assert gzip.decompress(sent.content) == plain.content
        assert len(sent.content) < CLICK_BYTES / 4
        assert len(plain.content) < CLICK_BYTES


def test_columns_are_coded_while_nobody_asks_and_the_first_click_decodes_none(
    folders, serve_root, monkeypatch
):
    server, store = serve_root(folders[1])
    server.get("/v/d/1")
    coded = []
    code = column_codes.code_column

    def record_series(name, series):
        coded.append((name, len(series)))
        return code(name, series)

    monkeypatch.setattr(version_columns, "code_column", record_series)
    server.opened.columns.read_ahead()
    assert len(coded) == version_page.MOST_OPEN
    assert {n for _, n in coded} == {SIZES[1]}
    coded.clear()
    store.requests.clear()
    server.get(CLICK, **AS_SCRIPT)
    assert coded == []
    assert sum(store.requests.values()) == 0


def test_page_of_a_spread_version_costs_the_same_and_its_click_estimates(folders, serve_root, monkeypatch):
    """Versions above 2e7 samples count spread row groups; here every version does."""
    monkeypatch.setattr(spread_rows, "WHOLE_UP_TO", 100)
    monkeypatch.setattr(spread_rows, "SPREAD_ROWS", 90)
    monkeypatch.setattr(spread_rows, "ROW_GROUP_ROWS", 30)
    requests = []
    for folder, n in zip(folders, SIZES, strict=True):
        server, store = serve_root(folder)
        server.get("/")
        store.requests.clear()
        page = server.get("/v/d/1").text
        assert store.nbytes["samples-"] == 0
        requests.append(sum(store.requests.values()))
        assert "about:" not in page, "stored statistics are exact"
        click = server.get(CLICK, **AS_SCRIPT).text
        assert re.search(r"about: \S+ % of the samples are counted", click)
        (facet,) = (one for one in server.get("/v/d/1.json").json()["facets"] if one["column"] == "label")
        assert facet["is_about"]
        assert abs(sum(value["all"] for value in facet["values"]) - n) < n / 50
    assert requests[0] == requests[1] <= MOST_SPREAD_REQUESTS


def test_page_of_registered_documents_reads_their_keys_not_their_locations(tmp_path, serve_root, monkeypatch):
    """Keys need no checksums of a seal, and no documents are read: of 1e8 as of 300."""
    monkeypatch.setattr(spread_rows, "WHOLE_UP_TO", 100)
    place = documents.make(tmp_path / "documents", 300)
    with loader.Root(tmp_path / "root") as root:
        register(root, "megatron", str(place), "texts")
    server, store = serve_root(tmp_path / "root")
    server.get("/")
    store.attempted.clear()
    page = server.get("/v/texts/1").text
    assert page.count("data-key>") == 60
    assert len(store.attempted) <= MOST_SPREAD_REQUESTS, store.attempted
    locations = [
        key for key in store.attempted if key.startswith(("seals/", "places/")) or "/foreign-" in key
    ]
    assert not locations
    assert "penstock.json" not in store.attempted, "the server has read it for the first page"
