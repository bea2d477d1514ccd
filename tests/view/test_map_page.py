"""The map of a version: its page, its image and the sample at a point agree with brute force, whatever the filter."""

import io
import json
import random
import re
from fractions import Fraction
from html import unescape
from urllib.parse import parse_qs, quote, urlencode

import numpy as np
import pytest
from PIL import Image

import loader
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import read_map
from tests.view.map_dataset import write_faces
from tests.view.test_web import Served

LAST = 65_535


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("map") / "root")
    write_faces(root)
    root.exclude("faces@1", ["f/03"], reason="blurred")
    root.save_slice("faces@2", "wide", "width >= 30", by="ann", why="wide ones")
    with root.write("plain") as writer:
        writer.add("a", {"cls": 1})
    make_map(root, "faces@2")
    return root


@pytest.fixture(scope="module")
def site(root):
    server = Served(loader.Root(root.url), recipe=None)
    yield server
    server.close()


def get_json(served, path):
    answer = served.get(path)
    assert answer.status_code == 200, answer.content
    return json.loads(answer.content)


def inside(x, y, corners):
    """Return whether the centre of a point's cell is inside, by the even-odd rule."""
    column = x // 64 * 64 + 32
    row = y // 64 * 64 + 32
    n_crossed = 0
    for number, (x1, y1) in enumerate(corners):
        x0, y0 = corners[number - 1]
        if (y0 <= row) != (y1 <= row):
            n_crossed += x0 + Fraction((row - y0) * (x1 - x0), y1 - y0) <= column
    return n_crossed % 2 == 1


def members(version, where, lasso):
    """Return the ordinals that pass, sample by sample."""
    places = read_map(version)
    rows = version.samples().select("ordinal", "label", "width").collect().rows()
    passing = []
    for ordinal, label, width in rows:
        x, y = int(places.x[ordinal]), int(places.y[ordinal])
        if where(label, width) and places.has_place[ordinal] and (not lasso or inside(x, y, lasso)):
            passing.append(ordinal)
    return passing


FILTERS = [
    ({}, lambda label, width: True),
    ({"where": "width > 20"}, lambda label, width: width > 20),
    ({"t": "\"label\" = 'cat'"}, lambda label, width: label == "cat"),
    ({"t": "\"label\" = 'cat'", "in": "wide"}, lambda label, width: label == "cat" and width >= 30),
    ({"not": "wide", "where": "width != 4"}, lambda label, width: width < 30 and width != 4),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_lasso_and_filter_agree_with_brute_force(root, site, number):
    query, where = FILTERS[number]
    version = root.open("faces@2")
    rng = random.Random(number)
    for _ in range(6):
        corners = [(rng.randrange(LAST), rng.randrange(LAST)) for _ in range(rng.randint(3, 9))]
        text = ";".join(f"{x},{y}" for x, y in corners)
        address = urlencode({**query, "lasso": text})
        expected = members(version, where, corners)
        page = get_json(site, f"/v/faces/2.json?{address}&facet=*")
        assert page["n_found"] == len(expected)
        assert sorted(row["ordinal"] for row in page["rows"]) == expected
        record = get_json(site, f"/v/faces/2/map.json?{address}")
        assert (record["n_found"], record["n_placed"], record["lasso"]) == (len(expected), 58, text)
        for facet in page["facets"]:
            for value in facet["values"]:
                terms = [query["t"]] if "t" in query and facet["column"] != "label" else []
                rest = {**query, "lasso": text, "t": [*terms, value["where"]]}
                clicked = get_json(site, f"/v/faces/2.json?{urlencode(rest, doseq=True)}")
                assert clicked["n_found"] == value["n"], (facet["column"], value)


def test_image_shows_what_the_filter_leaves(site):
    whole = site.get("/v/faces/2/map.png?colour=-")
    assert (whole.status_code, whole.headers["content-type"]) == (200, "image/png")
    half = site.get("/v/faces/2/map.png?colour=-&where=width+%3C+30")
    dark = site.get("/v/faces/2/map.png?theme=dark")
    n_blue = []
    for answer in (whole, half):
        pixels = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB")).astype(int)
        n_blue.append(int((pixels[:, :, 2] - pixels[:, :, 0] > 60).sum()))
    assert 0 < n_blue[1] < n_blue[0]
    assert Image.open(io.BytesIO(dark.content)).convert("RGB").getpixel((0, 0)) == (16, 19, 23)
    again = site.get("/v/faces/2/map.png?colour=-", if_none_match=whole.headers["etag"])
    assert again.status_code == 304
    zoomed = site.get("/v/faces/2/map.png?box=0,0,20000,20000")
    assert zoomed.content != whole.content


def test_near_names_the_sample_at_a_point(root, site):
    version = root.open("faces@2")
    places = read_map(version)
    keys = version.keys(np.arange(len(version)))
    for ordinal in range(0, len(version), 7):
        if not places.has_place[ordinal]:
            continue
        x, y = int(places.x[ordinal]), int(places.y[ordinal])
        record = get_json(site, f"/v/faces/2/map/near.json?x={x}&y={y}")
        assert (record["ordinal"], record["key"]) == (ordinal, keys[ordinal])
        moved = site.get(f"/v/faces/2/map/near?x={x}&y={y}")
        assert (moved.status_code, moved.headers["location"]) == (303, f"../s/{ordinal}")
        other = get_json(site, f"/v/faces/2/map/near.json?x={x}&y={y}&where=width+%3C+0")
        assert other["ordinal"] is None


def test_zoomed_map_is_walked_by_links(site):
    """Every link is a part of the map, and keeps filter and lasso; the samples' page beside keeps the part."""
    filtered = "where=width+%3E+3&lasso=0,0;65535,0;65535,65535;0,65535"
    for page in ("/v/faces/2/map", "/v/faces/2"):
        boxes = {"in": (16384, 16384, 49152, 49152)}
        box = ""
        for name in ("in", "in", "left", "up", "out", "down", "right", "whole"):
            answer = site.get(f"{page}?{filtered}&box={box}").text
            links = dict(re.findall(r'href="(\?[^"]*)" data-zoom="([a-z]+)"', answer))
            (link,) = [unescape(query) for query, zoom in links.items() if zoom == name]
            parameters = parse_qs(link.removeprefix("?"))
            assert parameters["where"] == ["width > 3"]
            assert parameters["lasso"] == ["0,0;65535,0;65535,65535;0,65535"]
            (box,) = parameters.get("box", [""])
            boxes[name] = box
        assert boxes == {
            "in": "24576,24576,40960,40960",
            "left": "20480,24576,36864,40960",
            "up": "20480,20480,36864,36864",
            "out": "12288,12288,45056,45056",
            "down": "12288,20480,45056,53248",
            "right": "20480,20480,53248,53248",
            "whole": "",
        }
    zoomed = site.get("/v/faces/2?box=20480,20480,53248,53248").text
    facets = [unescape(link) for link in re.findall(r'<li><a href="([^"]*)"', zoomed)]
    assert facets
    assert all("box=20480%2C20480%2C53248%2C53248" in link for link in facets)
    assert 'viewBox="20480 20480 32768 32768"' in zoomed
    assert "data-zoom" in site.get("/v/faces/2?box=1,2,3").text
    smallest = site.get("/v/faces/2/map?box=100,100,612,612").text
    assert 'data-zoom="in"' not in smallest
    assert 'data-zoom="out"' not in site.get("/v/faces/2/map").text


def test_near_in_a_zoomed_map_names_what_is_near_there(root, site):
    """The nearest within a sixteenth of the drawn side, and inside the lasso."""
    places = read_map(root.open("faces@2"))
    placed = np.flatnonzero(places.has_place)
    xs, ys = places.x[placed].astype(int), places.y[placed].astype(int)
    x, y = int(xs[0]) + 300, int(ys[0])
    squares = np.square(xs - x) + np.square(ys - y)
    named = []
    for side in (512, 2_048, 4_096, 8_192, 65_536):
        x0, y0 = min(x, 65_536 - side), min(y, 65_536 - side)
        record = get_json(site, f"/v/faces/2/map/near.json?x={x}&y={y}&box={x0},{y0},{x0 + side},{y0 + side}")
        is_near = squares.min() <= (side // 16) ** 2
        named.append(is_near)
        expected = int(placed[squares.argmin()]) if is_near else None
        assert record["ordinal"] == expected, side
    assert set(named) == {True, False}
    nearest = int(placed[squares.argmin()])
    left = f"0,0;{xs[squares.argmin()] - 200},0;{xs[squares.argmin()] - 200},{LAST};0,{LAST}"
    record = get_json(site, f"/v/faces/2/map/near.json?x={x}&y={y}&lasso={left}")
    assert record["ordinal"] != nearest


def test_slice_of_a_lasso_has_what_the_page_counts(tmp_path):
    root = loader.Root(tmp_path / "root")
    write_faces(root)
    root.save_slice("faces@1", "wide", "width >= 30", by="ann", why="wide ones")
    make_map(root, "faces@1")
    served = Served(root.url, recipe=None, writes=True)
    who = {"version": "faces@1", "by": "ada", "why": "odd", "page": "/v/faces/1"}
    corners = [(0, 0), (LAST, 0), (LAST, 20_000), (30_000, LAST)]
    try:
        for number, (query, where) in enumerate(FILTERS[:4]):
            text = ";".join(f"{x},{y}" for x, y in corners)
            address = urlencode({**query, "lasso": text, "box": "0,0,512,512", "sort": "-width"})
            expected = members(root.open("faces@1"), where, corners)
            assert get_json(served, f"/v/faces/1.json?{address}")["n_found"] == len(expected) > 0
            saved = served.post({**who, "name": f"s{number}", "filter": f"?{address}"}, "/slice").json()
            assert (saved["kind"], saved["n_samples"]) == ("list", len(expected))
            sliced = root.open("faces@1").slice(f"s{number}")
            assert np.flatnonzero(sliced.members()).tolist() == expected
        for wrong, error in (
            ("lasso=1,1;2,2", "has 2 corners"),
            ("in=none&lasso=1,1;2,2;3,1", "none"),
            ("where=label+%3D&lasso=1,1;2,2;3,1", "not an SQL expression"),
            ("where=width+%3C+0", "no sample"),
        ):
            answer = served.post({**who, "name": "bad", "filter": wrong}, "/slice")
            assert answer.status_code == 409
            assert error in answer.text
        assert not list(root.store.list("slices/faces/bad/"))
    finally:
        served.close()


@pytest.mark.parametrize(
    ("lasso", "error"),
    [
        ("1,2;3,4", "has 2 corners: a lasso is 3 to 64 corners"),
        (";".join(["1,2"] * 65), "has 65 corners"),
        ("1,2;3,4;5,99999", "has the number '99999'"),
        ("<script>alert(1)</script>;1;2", "of the lasso is not X,Y"),
        ("9" * 5_000, "has 5,000 characters"),
    ],
)
def test_wrong_lasso_is_named_and_the_page_stays(site, lasso, error):
    page = site.get(f"/v/faces/2?lasso={quote(lasso)}")
    assert page.status_code == 200
    assert "59 found" in page.text
    assert error in unescape(page.text)
    assert "<script>alert" not in page.text
    answer = site.get(f"/v/faces/2.json?lasso={quote(lasso)}")
    assert answer.status_code == 400
    assert error in json.loads(answer.content)["message"]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/v/faces/2/map.png?box=1,2,3", 400, "is not x0,y0,x1,y1 of whole numbers"),
        ("/v/faces/2/map.png?colour=smell", 400, "it is not a column of faces@2"),
        ("/v/faces/2/map/near.json?x=1", 404, "y = ''"),
        ("/v/faces/2/map/near.json?x=70000&y=1", 400, "is not on the map"),
        ("/v/plain/1/map.png", 400, "has no field embedding.npy or appearance.npy"),
        ("/v/plain/1/map/near.json?x=1&y=1", 400, "has no field"),
    ],
)
def test_wrong_address_of_the_map_is_an_error(site, path, status, error):
    answer = site.get(path)
    assert answer.status_code == status
    assert error in answer.text


def test_version_without_a_map_names_the_command(root, tmp_path):
    write_faces(other := loader.Root(tmp_path / "root"))
    served = Served(other, recipe=None)
    try:
        page = served.get("/v/faces/1/map").text
        assert "run penstock index faces@1 --map" in page
        assert 'role="alert"' not in page, "it is a hint"
        assert served.get("/v/faces/1/map.png").status_code == 404
        page = served.get("/v/faces/1?lasso=1,1;2,2;3,1").text
        assert "60 found" in page
        assert "has no map of" in page
        assert 'id="map"' not in served.get("/v/plain/1").text
    finally:
        served.close()


def test_page_has_its_map_once_it_is_read(root, site):
    own = Served(loader.Root(root.url), recipe=None)
    try:
        first = own.get("/v/faces/2").text
        assert 'hx-get="2/map?"' in first
        part = own.get("/v/faces/2/map", hx_request="true").text
        assert part.lstrip().startswith("<aside")
        later = own.get("/v/faces/2").text
        assert "map.png?" in later
        assert 'hx-get="2/map' not in later
    finally:
        own.close()
