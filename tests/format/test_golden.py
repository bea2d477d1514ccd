"""The format's golden files: a change leaves the bytes alone, or raises the format's number."""

import json
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.dataset.log import entries, marker
from loader.dataset.tables import manifest
from tests.servers.processes import python

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def golden_values():
    return json.loads((GOLDEN / f"format-{marker.FORMAT}.json").read_text(encoding="utf-8"))


def test_code_gives_the_golden_file(golden_values, regenerate):
    made = json.loads(json.dumps(regenerate.golden()))
    for part in golden_values:
        assert made[part] == golden_values[part], part
    assert made == golden_values


def test_every_format_so_far_has_its_file():
    assert {path.name for path in GOLDEN.glob("*.json")} == {
        f"format-{n}.json" for n in range(1, marker.FORMAT + 1)
    }


def test_one_number_for_root_manifest_and_log():
    assert marker.FORMAT == manifest.FORMAT == entries.FORMAT == 1


def test_golden_file_is_never_overwritten():
    before = (GOLDEN / f"format-{marker.FORMAT}.json").read_bytes()
    run = python(GOLDEN / "regenerate.py")
    assert run.returncode == 1
    assert "never overwritten" in run.stdout
    assert (GOLDEN / f"format-{marker.FORMAT}.json").read_bytes() == before


def test_golden_shards_are_what_tarfile_says(golden_values, regenerate):
    """The golden file itself, against an independent reader."""
    import io
    import tarfile

    root = regenerate.write("memory://golden-tar")
    by_name = {
        row["path"].rpartition("/")[2]: row for row in root.open("golden").parts.shard_rows().to_pylist()
    }
    for shard in golden_values["shards"]:
        data = root.store.get(by_name[shard["name"]]["path"]).data
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [(m.name, m.offset_data, m.size) for m in archive.getmembers()]
        fields = sorted(shard["offset nbytes crc32c"])
        assert members == [
            (f"{key}.{field}", *shard["offset nbytes crc32c"][field][row][:2])
            for row, key in enumerate(shard["keys"])
            for field in fields
        ]


def test_log_is_what_the_format_says(regenerate):
    """Chained canonical JSON, create-only numbers, the manifest named by its sha256."""
    import hashlib

    root = regenerate.write("memory://golden-log")
    names = [info.key for info in root.store.list("log/")]
    assert names == [f"log/{n:012d}.json" for n in range(1, len(names) + 1)]
    previous, kinds = "", []
    for n, name in enumerate(names, 1):
        data = root.store.get(name).data
        entry = json.loads(data)
        assert data == json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert (entry["n"], entry["prev"], entry["format"]) == (n, previous, 1)
        previous = hashlib.sha256(data).hexdigest()
        kinds.append(entry["kind"])
        if entry["kind"] == "commit":
            stored = root.store.get(entry["manifest"]).data
            assert hashlib.sha256(stored).hexdigest() == entry["sha256"] == entry["id"].removeprefix("v-")
            assert entry["manifest"].endswith(f"manifest-{entry['sha256'][:16]}.json")
            assert json.loads(stored)["parent"] == entry["parent"]
    assert kinds == ["begin", "commit"] * 3


def test_key_keeps_its_place_whatever_comes_later(golden_values, regenerate):
    """Ordinals of a version do not move when a later one adds samples."""
    root = regenerate.write("memory://golden-later")
    with root.write("golden", groups={"cls": "labels"}) as writer:
        for key, fields, metadata, source in regenerate.samples():
            writer.add(f"later/{key[:89]}", fields, metadata, source)
    version = loader.Root(root.url).open("golden")
    n = len(golden_values["keys in order"])
    assert version.keys(np.arange(n)) == golden_values["keys in order"]
    assert len(version) == n + 16
