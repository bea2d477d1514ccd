"""The books: what must add up at any time, and what must at the end."""

import hashlib
from collections import Counter
from pathlib import Path

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.batches import IngestBatch, IngestBatches
from penstock.upkeep.verify.root import verify_root
from tests.soak.arrivals import Place

DATASET = "small"


class Books:
    """Of one root and one landing place."""

    def __init__(self, root: Path, place: Place) -> None:
        self._url, self._place, self._batches = root, place, IngestBatches(DATASET)

    def check(self) -> str:
        """At any time: no object in two batches, every batch adds up, no sample twice. Raises: AssertionError."""
        with loader.Root(self._url) as root:
            self._no_object_twice(root)
            for batch in self._batches.current(root):
                self._adds_up(batch)
            self._no_sample_twice(root)
        return "books checked"

    def standings(self) -> set[str]:
        """Of all batches."""
        with loader.Root(self._url) as root:
            return {batch.standing for batch in self._batches.current(root)}

    def all_discovered(self) -> bool:
        """Whether everything that lies in the landing place is in a batch, as it is now."""
        with loader.Root(self._url) as root:
            known = {
                (item.key, item.nbytes) for one in manifests(root.store, DATASET) for item in one.objects
            }
        return all((name, len(data)) in known for name, data in self._place.there.items())

    def close(self) -> str:
        """At the end: every photo that lies there is a sample of the newest version or was stopped with its batch,
        once; nothing else is; every stored byte is what it was. Raises: AssertionError."""
        self.check()
        with loader.Root(self._url) as root:
            batches = self._batches.current(root)
            stopped = {batch.key for batch in batches if batch.standing == "stopped"}
            held = {
                item.key
                for one in manifests(root.store, DATASET)
                if one.batch in stopped
                for item in one.objects
            }
            samples = set(root.open(f"{DATASET}@latest").samples().collect()["raw_sha256"])
            photos = {hashlib.sha256(data).hexdigest() for data in self._place.photos}
            assert samples <= photos, "a sample of something that was never a photo"
            for name, data in self._place.there.items():
                if data in self._place.photos and name not in held:
                    assert hashlib.sha256(data).hexdigest() in samples, f"{name} is in no version"
            report = verify_root(root, full=True)
            assert not report.problems, report.problems
            versions = root.versions(DATASET)
        outcomes = Counter(batch.standing for batch in batches)
        return f"{len(samples)} samples in {len(versions)} versions; batches: {dict(outcomes)}; every byte verified"

    def _no_object_twice(self, root: loader.Root) -> None:
        seen = Counter(
            (item.uri, item.etag) for one in manifests(root.store, DATASET) for item in one.objects
        )
        twice = [identity for identity, count in seen.items() if count > 1]
        assert not twice, f"in two batches: {twice[:3]}"

    def _adds_up(self, batch: IngestBatch) -> None:
        if batch.standing in ("ready", "published", "nothing_new"):
            assert batch.used + sum(batch.refused.values()) == batch.objects, batch

    def _no_sample_twice(self, root: loader.Root) -> None:
        if root.state.newest(DATASET) is not None:
            keys = root.open(f"{DATASET}@latest").samples().collect()["raw_sha256"].to_list()
            assert len(keys) == len(set(keys)), "a photo is in two samples"
