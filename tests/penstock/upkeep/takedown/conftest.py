"""Roots with samples of several subjects, and ways to look for what is left of one."""

import io
import itertools
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables.manifest import references
from loader.dataset.versions.version import Version
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.servers.processes import python

SCRIPT = Path(__file__).parents[4] / "examples" / "recheck_takedown.py"
_numbers = itertools.count()


class Kit:
    """Functions for these tests; `secret` names the subject that is taken down in bytes, columns and keys alike."""

    secret = "ZQALICEZQ"
    ALICE = Target(kind="subject", value=secret)

    def write(self, root, dataset, samples, part_samples=3):
        """A version more. samples: key -> subject; bytes, columns and provenance name the key and the subject."""
        with root.write(dataset, part_samples=part_samples, groups={"cls": "labels"}) as writer:
            for key, subject in samples.items():
                writer.add(
                    key,
                    {"txt": f"<{subject} {key}>" * 3, "cls": len(key)},
                    {"who": f"of {subject}", "n": len(key), "dup_of": samples.get("dup_of")},
                    {
                        "subject": subject,
                        "raw_key": f"raw/{key}.jpg",
                        "source_key": f"source/{key}",
                        "unit_id": f"unit/{key}",
                    },
                )
        return writer.version

    def content(self, version):
        """key -> field -> bytes of every live sample."""
        out = {}
        for body in version.manifest["groups"].values():
            fields = sorted(body["field_nbytes"])
            view = version.select(*fields, where_present=True)
            there = view.version_ordinals(np.arange(len(view), dtype=np.int64))
            addresses = version.address(there, fields)
            for address, data in zip(addresses, read_fields(version.store, addresses), strict=True):
                out.setdefault(address.key, {}).update(data)
        return out

    def deny(self, root, *targets):
        return root.log.deny(targets or (self.ALICE,), "ticket 12", "privacy desk").n

    def take_down(self, root, n):
        return run_takedown(root, n, apply=True)

    def sweep(self, root):
        """What a collector deletes once its grace is over: all that no version which is not retired is made of."""
        live = set()
        for dataset in root.state.datasets:
            for record in root.state.versions(dataset):
                if record.retired is None:
                    version = Version.of_record(root.store, record)
                    live |= {record.manifest, *(one.path for one in references(root.store, version.manifest))}
        gone = [info.key for info in root.store.list("data/") if info.key not in live]
        root.store.delete_many(gone)
        return gone

    def found(self, root, *words):
        """Keys of the objects that hold one of the words: in their bytes, in cells of tables, in names of members."""
        found = []
        for info in root.store.list(""):
            data = root.store.get(info.key).data
            if info.key.endswith(".parquet"):
                data += str(pq.read_table(io.BytesIO(data)).to_pydict()).encode()
            if info.key.endswith(".tar"):
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    data += "\n".join(tar.getnames()).encode()
            if any(word.encode() in data for word in words):
                found.append(info.key)
        return found

    def prove(self, root, n, **options):
        return prove(root, n, **options)

    def recheck(self, proof, place, tmp_path):
        """(exit status, what it prints) of the script, which knows nothing of penstock."""
        import json

        path = tmp_path / f"proof-{next(_numbers)}.json"
        path.write_text(json.dumps(proof))
        done = python("-I", SCRIPT, path, place, cwd="/")
        assert done.stderr == ""
        return done.returncode, done.stdout


@pytest.fixture(scope="session")
def kit(shared):
    made = Kit()
    made.interrupted = shared("dataset/interrupted").interrupt_store
    return made


@pytest.fixture
def root():
    return loader.Root(f"memory://takedown-{next(_numbers)}")
