"""Version ids and shard hashes of every format: registered, imported in both orders, ingested by the pipeline.

    .venv/bin/python -m tests.penstock.formats.test_golden_parts

adds the values that `golden/parts.json` lacks, and changes none. A value that changes would give users other versions
of the same bytes.
"""

import hashlib
import io
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.gate_settings import Gate
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.sources import Source
from assets.spec import DatasetSpec
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.formats.importer import NO_OPTIONS
from penstock.formats.lerobot.lerobot_registered import register_lerobot
from penstock.formats.registration.register import register
from penstock.formats.registry import REGISTERED, TABLES
from penstock.formats.run_import import import_place
from tests.penstock.formats.conftest import fill

GOLDEN = Path(__file__).parent / "golden"
SHARD_BYTES = 2**12
"""Of an import: several units, and units of several parts."""
CASES = [
    *(f"register {name}" for name in sorted({*REGISTERED, *TABLES, "lerobot"})),
    *(f"import {name}, {order}" for name in PLACE_FORMATS for order in ("in order", "shuffled")),
    *(f"ingest {name}" for name in PLACE_FORMATS),
    *(f"ingest {name} in place" for name in sorted(REGISTERED)),
]


def sha256(value):
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


def place_hash(place):
    """Hash of a place's keys and bytes."""
    return sha256({key: hashlib.sha256(data).hexdigest() for key, data in objects_of(place).items()})


def shard_hashes(store, rows):
    """Hash of each shard, or of the index of a shard in place: of its columns, since Parquet names its writer."""
    out = []
    for row in rows:
        index = pq.read_table(io.BytesIO(store.get(row["index_path"]).data)).to_pylist()
        out.append([row["group"], row["n_rows"], row["sha256"][:16] or sha256(index)])
    return out


def of_version(version):
    rows = version.parts.shard_rows().to_pylist()
    return {"id": version.id, "shards": shard_hashes(version.store, rows)}


def of_batch(root, place, name, keep):
    """The shards of a batch of the pipeline. Its version's id holds the run's, and the folder's inodes."""
    options = OPTIONS.get(name, NO_OPTIONS)
    source = Source(format=name, keep=keep, fields=options.fields)
    spec = DatasetSpec(name="demo", sources=(source,), gate=Gate(thresholds=None))
    root.create()
    store, compute = open_store(str(place)), InlineCompute()
    (batch,) = discover(root.store, store, "demo", source=source)
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    media_stage(root, store, compute, spec, partition=batch, run_id="r")
    record, _, refused = units_stage(root, store, compute, spec, partition=batch, run_id="r")
    assert refused == []
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    return {"shards": shard_hashes(root.store, [asdict(shard) for part in parts for shard in part.shards])}


def golden_values(case, places, root):
    """The golden values of a case. root: a new one."""
    verb, name, how = (*case.replace(",", "").split(" ", 2), "")[:3]
    place = places / name
    if verb == "register" and name == "lerobot":
        return of_version(register_lerobot(root, open_store(place), "d").version)
    if verb == "register":
        fields = OPTIONS[name].fields if name in OPTIONS else {}
        return of_version(register(root, name, place, "d", fields=fields).version)
    if verb == "import":
        options, shuffle = OPTIONS.get(name, NO_OPTIONS), how == "shuffled"
        sizes = {"shard_bytes": SHARD_BYTES}
        report = import_place(root, name, open_store(place), "d", options=options, shuffle=shuffle, **sizes)
        assert report.failures == []
        return of_version(root.open("d"))
    return of_batch(root, place, name, how or "copy")


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "parts.json").read_text())


def test_golden_parts_hold_every_format(golden):
    assert sorted(golden["values"]) == sorted(CASES)


@pytest.mark.parametrize("case", CASES)
def test_parts_have_their_golden_hashes(case, golden, format_places, tmp_path):
    name = case.replace(",", "").split()[1]
    assert place_hash(format_places / name) == golden["places"][name], (
        "the library of the format writes other bytes: make the golden values of this place anew"
    )
    expected = golden["values"][case]
    if pa.__version__ != golden["pyarrow"]:
        expected.pop("id", None)  # hashes of tables, which name the release of pyarrow that wrote them
    with loader.Root(tmp_path / "root") as root:
        actual = golden_values(case, format_places, root)
    assert {kind: actual[kind] for kind in expected} == expected


def add():
    file = GOLDEN / "parts.json"
    known = json.loads(file.read_text()) if file.exists() else {"pyarrow": pa.__version__}
    places, values = known.setdefault("places", {}), known.setdefault("values", {})
    with tempfile.TemporaryDirectory() as folder:
        filled = fill(Path(folder) / "places")
        for name in PLACE_FORMATS:
            places.setdefault(name, place_hash(filled / name))
        for n, case in enumerate(CASES):
            if case not in values:
                with loader.Root(Path(folder) / f"root-{n}") as root:
                    values[case] = golden_values(case, filled, root)
    rows = ",\n".join(f"  {json.dumps(case)}: {json.dumps(values[case])}" for case in sorted(values))
    head = json.dumps({"pyarrow": known["pyarrow"], "places": places}, indent=1)[:-2]
    file.write_text(f'{head},\n "values": {{\n{rows}\n }}\n}}\n')


if __name__ == "__main__":
    add()
