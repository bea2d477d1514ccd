"""webdataset, version pinned in webdataset.txt: we read its writer's archives, and it reads our export."""

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export

pytestmark = pytest.mark.oracle


def field_bytes(version):
    """key -> field -> bytes of the live samples."""
    out = {}
    for row in version.samples().collect().to_dicts():
        (address,) = version.address(np.array([row["ordinal"]]), version.fields)
        out[row["key"]] = read_fields(version.shard_store, [address])[0]
    return out


def test_its_writers_archives_are_registered_and_come_out_again(tmp_path, peer):
    files = tmp_path / "files"
    files.mkdir()
    draw, wanted = np.random.default_rng(3), {}
    for number in range(50):
        key = f"p{number:02}"
        wanted[key] = {"bin": draw.bytes(number * 40), "txt": f"caption {number} \u00e9".encode()}
        for field, data in wanted[key].items():
            (files / f"{key}.{field}").write_bytes(data)
    peer("webdataset", "write", files, tmp_path / "tars")
    with loader.Root(tmp_path / "root") as root:
        version = register(root, "webdataset", tmp_path / "tars", "photos").version
        assert field_bytes(version) == wanted
        root.exclude("photos", ["p07"], reason="bad")
        export(root.open("photos"), "webdataset", open_store(tmp_path / "out"))
    theirs = peer("webdataset", "read", *sorted((tmp_path / "out").rglob("*.tar")))
    found = {one["__key__"]: {k: bytes.fromhex(one[k]) for k in ("bin", "txt")} for one in theirs}
    del wanted["p07"]
    assert found == wanted
