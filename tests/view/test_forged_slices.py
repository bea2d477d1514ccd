"""Slices that a writer of the bucket forged: each is named by its path, and hides neither pages nor other slices."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.versions.samples_table import live_ordinals
from loader.order.sources.views import list_sha256
from tests.view.conftest import write_photos
from tests.view.test_web import Served

OTHER_ID = "v-" + "0" * 64
HOSTILE = "ev\u202eil</b><script>alert(1)</script>\n" * 2000
RECORDS = {
    "other-name": {"name": "list"},
    "other-dataset": {"dataset": "others", "version": "others@1"},
    "format": {"format": "1"},
    "time": {"at_us": 10**300},
    "number": {"version": "photos@" + "9" * 100_000},
    "letters": {"version": "photos@\u0663"},
    "removed": {"removed": 1},
    "both-kinds": {"where": "width > 40"},
    "no-digest": {"sha256": "x"},
    "no-reason": {"why": None},
}
"""Name of a slice -> how its record differs from the one of a list."""
TEXTS = {"empty": b"", "half": b'{"format":1,', "deep": b"[" * 100_000, "bytes": b"\xff\xfe", "object": b"{}"}
RULES = {
    "query": "(SELECT 1) = 1",
    "file": "read_csv('/etc/passwd') = 1",
    "column": "nothing > 1",
    "costly": "width" + " BETWEEN 1 AND 2 OR width" * 1200 + " = 1",
    "long": " OR ".join(f"width = {number}" for number in range(400)),
}
"""Name of a slice -> its rule, of a version that does not exist."""
FUTURE = "future"
FORGED = (*RECORDS, *TEXTS, *RULES, FUTURE, "exchanged", "excluded", "past-the-end", "without-table")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged") / "root"
    with loader.Root(folder) as root:
        write_photos(root)
        write_photos(root, "others", numbers=range(20, 24))
        root.save_slice("photos@1", "list", ["p/1", "p/4"], by="ada", why="cut off")
        root.save_slice("photos@1", "rule", "width > 42", by="ada", why="wide")
        root.exclude("photos@1", ["p/4"], reason="black")
        forge_records(folder / "slices/photos")
        forge_tables(root, folder / "slices/photos")
    served = Served(folder, recipe=None, writes=True)
    yield served
    served.close()


def forge_records(slices):
    record = json.loads((slices / "list/000001.json").read_bytes())
    rule = json.loads((slices / "rule/000001.json").read_bytes())
    table = (slices / "list/000001.parquet").read_bytes()
    bodies = {name: {**record, "name": name, **changes} for name, changes in RECORDS.items()}
    bodies |= {
        name: {**rule, "name": name, "where": where, "version_id": OTHER_ID} for name, where in RULES.items()
    }
    bodies |= {name: {**record, "name": name} for name in ("exchanged", "without-table")}
    bodies[FUTURE] = {**record, "name": FUTURE, "format": 2}
    bodies["hostile"] = {
        **rule,
        "name": "hostile",
        "by": HOSTILE,
        "why": HOSTILE,
        "page": "javascript:alert(1)",
    }
    texts = TEXTS | {name: json.dumps(body).encode() for name, body in bodies.items()}
    for name, text in texts.items():
        (slices / name).mkdir()
        (slices / name / "000001.json").write_bytes(text)
    (slices / "exchanged/000001.parquet").write_bytes(table)


def forge_tables(root, slices):
    """Forge lists with right digests: of an excluded sample, and of a row that its part does not have."""
    record = json.loads((slices / "list/000001.json").read_bytes())
    table = pq.read_table(slices / "list/000001.parquet")
    newest = root.open("photos@2")
    excluded = table.slice(1, 1)
    assert excluded["key"].to_pylist() == ["p/4"]
    outside = table.slice(0, 1).set_column(2, "row", pa.array([10**6]))
    for name, rows in {"excluded": excluded, "past-the-end": outside}.items():
        path = f"slices/photos/{name}/000001.parquet"
        facts = {b"penstock.path": path.encode()}
        sink = io.BytesIO()
        pq.write_table(rows.replace_schema_metadata({**table.schema.metadata, **facts}), sink)
        ordinals = rows["ordinal"].to_numpy()
        body = {
            **record,
            "name": name,
            "version": newest.name,
            "version_id": newest.id,
            "n_samples": 1,
            "sha256": list_sha256(ordinals),
        }
        (slices / name).mkdir()
        (slices / name / "000001.json").write_text(json.dumps(body))
        (slices / name / "000001.parquet").write_bytes(sink.getvalue())


@pytest.mark.parametrize("name", FORGED)
def test_forged_slice_stays_in_its_box(site, name):
    """A page without it shows the rest of its filter, and names the slice."""
    answer = site.get(f"/v/photos/2.json?in={name}&in=list")
    assert answer.status_code == 400
    assert name in answer.json()["message"]
    page = site.get(f"/v/photos/2?in={name}&in=list")
    assert page.status_code == 200
    assert "1 found" in page.text  # of the list, the sample that is not excluded
    assert name in page.text.split('class="filter-error')[1]
    without = site.get(f"/v/photos/2?not={name}")
    assert "13 found" in without.text


def test_healthy_slices_stand_beside_forged_ones(site):
    record = site.get("/slices.json").json()
    healthy = {f"{one['dataset']}/{one['name']}" for one in record["slices"]}
    assert {"photos/list", "photos/rule", "photos/hostile"} <= healthy
    damaged = {path.split("/")[2] for path in record["damaged"]}
    assert damaged == {*RECORDS, *TEXTS, FUTURE}
    page = site.get("/slices")
    assert page.status_code == 200
    assert all(path in page.text for path in record["damaged"])
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert len(page.text) < 60_000
    assert site.get("/slices/photos/list.json").json()["missing"] == ["p/4"]
    assert site.get("/v/photos/2.json?in=rule").json()["n_found"] == 7


@pytest.mark.parametrize("name", FORGED)
def test_page_of_a_forged_slice_tells_what_is_wrong(site, name):
    answer = site.get(f"/slices/photos/{name}")
    assert answer.status_code in (400, 404, 502)
    assert name in answer.text


@pytest.mark.parametrize("name", FORGED)
def test_forged_slice_excludes_nothing(site, name):
    request = {"version": "photos@2", "name": name, "by": "eve", "why": "covers", "page": "/slices"}
    answer = site.post(request, "/slice/exclude")
    assert answer.status_code == 409
    assert [version.number for version in site.root.versions("photos")] == [1, 2]


@pytest.mark.parametrize(
    "path",
    [
        "/slices/photos/..%2Flist",
        "/slices/..%2Fphotos/list",
        "/slices/photos/LIST",
        "/slices/photos/" + "x" * 5000,
    ],
)
def test_name_that_no_slice_has_is_refused(site, path):
    assert site.get(path).status_code == 404


def test_page_of_a_sample_names_its_slices_beside_forged_ones(site):
    (row,) = site.get("/v/photos/2.json?in=list").json()["rows"]
    page = site.get(f"/v/photos/2/s/{row['ordinal']}")
    assert page.status_code == 200
    assert "cut off" in page.text
    assert "<script>alert" not in page.text
    assert "rule of the slice" not in page.text


def test_keys_of_slices_are_live_samples_of_their_dataset(site):
    version = site.root.open("photos@2")
    for name in ("list", "rule", "hostile", *FORGED):
        answer = site.get(f"/v/photos/2.json?in={name}")
        if answer.status_code == 200:
            keys = [row["key"] for row in answer.json()["rows"]]
            assert (live_ordinals(version, keys) >= 0).all()
            assert "p/4" not in keys
