"""megatron-energon, version pinned in energon.txt: we read what it prepares, by its index, and it reads our export."""

import io
import tarfile

import numpy as np
import pytest

import loader
from loader.storage import open_store
from penstock.formats.archives import energon as archives
from penstock.formats.content_digest import content_digest
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place

pytestmark = pytest.mark.oracle


def archive(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, fields in samples.items():
            for field, data in fields.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def peer_samples(peer, folder, *splits):
    """key -> (field -> bytes, split), as Energon reads them."""
    out = {}
    for split in splits:
        for one in peer("energon", "read", folder, split):
            key = one.pop("__key__")
            out[key] = {name: bytes.fromhex(data) for name, data in one.items() if name[:2] != "__"}, split
    return out


def test_what_it_prepares_is_registered_by_its_index(tmp_path, peer, monkeypatch):
    draw, wanted = np.random.default_rng(3), {}
    for number in range(4):
        samples = {
            f"{number}/p{i}{'x' * 90 * (i % 2)}": {"bin": draw.bytes(i * 900), "Cap.txt": b"%d" % i}
            for i in range(9)
        }
        archive(tmp_path / f"place/part/{number}.tar", samples)
        wanted |= samples
    peer("energon", "prepare", tmp_path / "place", "train=3,val=1")
    monkeypatch.setattr(archives, "archive_samples", None)  # no headers
    with loader.Root(tmp_path / "root") as root:
        version = register(root, "energon", tmp_path / "place", "d").version
        rows = {row["key"]: row["split"] for row in version.samples().collect().to_dicts()}
        imported = import_place(root, "energon", open_store(tmp_path / "place"), "own")
        digests = {content_digest(one, full=True).digest for one in (version, root.open(imported.name))}
    theirs = peer_samples(peer, tmp_path / "place", "train", "val")
    assert {key: fields for key, (fields, _) in theirs.items()} == wanted
    assert rows == {key: split for key, (_, split) in theirs.items()}
    assert len(digests) == 1


def test_it_reads_our_export(tmp_path, peer):
    draw, wanted = np.random.default_rng(4), {}
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=10) as writer:
            for i in range(30):
                key, split = f"a/k{i}\u00e9" + "y" * 100 * (i % 2), "val" if i % 4 == 0 else "train"
                fields = {"bin": draw.bytes(i * 40), "Cap.txt": f"\u00fc{i}".encode()}
                writer.add(key, fields, source={"split": split})
                wanted[key] = fields, split
        root.exclude("d", ["a/k2\u00e9"], reason="bad")
        assert (
            export(root.open("d"), "energon", open_store(tmp_path / "out"), without=["split"]).failures == []
        )
        export(root.open("d"), "energon", open_store(tmp_path / "splits"))
    del wanted["a/k2\u00e9"]
    assert peer_samples(peer, tmp_path / "out", "train") == {
        key: (one, "train") for key, (one, _) in wanted.items()
    }
    told = peer_samples(peer, tmp_path / "splits", "train", "val")
    for fields, split in told.values():
        assert fields.pop("json").decode() == f'{{"split":"{split}"}}'
    assert told == wanted
