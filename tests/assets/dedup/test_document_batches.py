"""Near documents from landing to version: which is published, and what the accounts say of the others."""

import hashlib
import json
import random
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from assets.checks import near_duplicates_across_splits
from assets.dedup.document_copies import near_published
from assets.dedup.policy import NearDuplicates, TextMatch
from assets.dedup.settle_documents import sign_documents
from assets.featurizers.texts.minhash import text_signature
from assets.gate_settings import Gate
from assets.pages.report import check_metadata, samples_metadata
from assets.pipeline.tables import read_table
from assets.samples.assembly import candidate
from assets.spec import DatasetSpec, Feature
from loader.errors import InvalidSpec, StageNotPublished
from penstock.upkeep.exclusion import exclude
from tests.refusals import refusal

SPEC = DatasetSpec(
    name="texts",
    features=(Feature(name="minhash"),),
    near_duplicates=NearDuplicates(text=TextMatch()),
    gate=Gate(suite=()),
    max_reject_rate=1.0,
)


def article(seed: int, changed: int = 0) -> bytes:
    """An article of 300 words; another one for every seed. changed: words at the end that are others."""
    draw = random.Random(seed)
    words = [f"word{draw.randrange(10**6)}" for _ in range(300)]
    if changed:
        words[-changed:] = [f"other{draw.randrange(10**6)}" for _ in range(changed)]
    return " ".join(words).encode()


def test_copies_in_a_batch_and_against_the_version(dataset: Any) -> None:
    first = dataset.batch(
        SPEC,
        {
            "a.txt": article(1),
            "b.txt": article(1, changed=8),
            "c.txt": article(2),
            "far.txt": article(1, changed=150),
        },
    )
    accounts = dataset.accounts(SPEC, first)
    used = {name for name, row in accounts.items() if row["outcome"] == "used"}
    assert {"c.txt", "far.txt"} < used
    assert len(used & {"a.txt", "b.txt"}) == 1
    (dropped,) = accounts.keys() - used
    (kept,) = used & {"a.txt", "b.txt"}
    record = dataset.record(SPEC, first)
    assert (record.counts["near_duplicates"], record.counts["samples"]) == (1, 3)
    rows = candidate(dataset.root, replace(record, body={**record.body, "exclude": {}}))
    keys = dict(zip(rows["raw_key"], rows["key"], strict=True))
    assert accounts[dropped]["code"] == "near_duplicate"
    assert accounts[dropped]["reason"].startswith(f"near_duplicate of {keys[kept]} (similarity 0.9")
    table = rows.rows_by_key("raw_key", named=True, unique=True)
    assert (table[dropped]["dup_of"], table[dropped]["dup_by"]) == (keys[kept], "minhash")
    assert 0.85 < table[dropped]["dup_similarity"] < 1
    assert table["c.txt"]["dup_of"] is None
    dataset.release(SPEC)

    second = dataset.batch(
        SPEC, {"d.txt": article(2, changed=5), "e.txt": article(3), "f.txt": article(3, changed=3)}
    )
    record = dataset.record(SPEC, second)
    assert record.counts["compared_with"] == 3
    assert record.counts["near_duplicates"] == 2
    reason = dataset.accounts(SPEC, second)["d.txt"]["reason"]
    assert reason.startswith(f"near_duplicate of {keys['c.txt']} (similarity 0.9")
    assert reason.endswith("the other was published before)")
    dataset.release(SPEC)
    names = dataset.names("texts@2")
    assert {kept, "c.txt", "far.txt"} < names
    assert len(names) == 4


def test_one_of_several_near_documents_of_a_file_stays(dataset: Any) -> None:
    articles = [article(seed, changed) for seed in (1, 2, 3) for changed in (0, 5)]
    lines = [json.dumps({"text": text.decode()}) for text in articles]
    batch = dataset.batch(SPEC, {"all.jsonl": "\n".join(lines).encode()})
    record = dataset.record(SPEC, batch)
    assert record.counts["near_duplicates"] == 3
    version = dataset.release(SPEC).version
    texts = {sample["txt"].encode() for sample in version}
    assert [len(texts & set(articles[first : first + 2])) for first in (0, 2, 4)] == [1, 1, 1]


def test_dagster_shows_the_original_of_each_copy(dataset: Any) -> None:
    batch = dataset.batch(SPEC, {"a.txt": article(1), "b.txt": article(1, changed=6), "c.txt": article(2)})
    record = dataset.record(SPEC, batch)
    objects = read_table(dataset.root.store, record.files["objects"])
    (reason,) = record.body["exclude"].values()
    original = reason.split(" ")[2]
    shown = samples_metadata(record, objects, candidate(dataset.root, record))
    assert isinstance(shown["left_out_by_reason"], dg.MarkdownMetadataValue)
    for value in (shown["left_out_by_reason"].value, _texts(check_metadata(record, objects))):
        assert original.replace("_", "\\_") in value or original in value
        assert "near" in value
    assert shown["near_duplicates"].value == 1


def _texts(metadata: dict[str, Any]) -> str:
    return "\n".join(str(value.value) for value in metadata.values())


def test_sample_of_a_stopped_batch_is_excluded_by_key(dataset: Any) -> None:
    """The gate stops the batch until the sample is excluded, and the batch is cut again."""
    evaluation = replace(SPEC, name="questions", near_duplicates=None)
    dataset.batch(evaluation, {"question.txt": article(7)})
    dataset.release(evaluation)
    spec = replace(SPEC, gate=Gate(protected=("questions@1",)))
    dataset.batch(replace(spec, gate=SPEC.gate), {"a.txt": article(1)})
    dataset.release(SPEC)
    batch = dataset.batch(spec, {"b.txt": article(2), "leak.txt": article(7)})
    with refusal(StageNotPublished, what="gate", where="texts", given=["protected"]):
        dataset.release(spec)
    rows = candidate(dataset.root, dataset.record(spec, batch))
    key = rows.row(by_predicate=pl.col("raw_key") == "leak.txt", named=True)["key"]
    record, newest = exclude(dataset.root, "texts@1", [key], reason="a question", by="ann")
    assert (record.keys, newest.name) == ((key,), "texts@1")
    dataset.ingest(spec, batch)
    release = dataset.release(spec)
    assert release.published == (batch,)
    assert dataset.names("texts@2") == {"a.txt", "b.txt"}


def test_marked_copy_in_another_split_stops_its_batch(dataset: Any) -> None:
    spec = replace(
        SPEC,
        splits={"train": 0.5, "validation": 0.5},
        near_duplicates=NearDuplicates(text=TextMatch(), action="mark"),
        gate=Gate(suite=(), thresholds=None, checks={"across": near_duplicates_across_splits}),
    )
    copies: dict[str, bytes] = {}
    for changed in range(1, 12):
        data = article(1, changed)
        copies.setdefault(spec.split_of(hashlib.sha256(data).hexdigest()), data)
    dataset.batch(spec, {"a.txt": copies["train"]})
    dataset.release(spec)
    dataset.batch(spec, {"b.txt": copies["validation"]})
    with refusal(StageNotPublished, what="gate", where="texts", given=["across"]):
        dataset.release(spec)


def test_batch_without_anything_new_is_dropped(dataset: Any) -> None:
    dataset.batch(SPEC, {"a.txt": article(1)})
    dataset.release(SPEC)
    again = dataset.batch(SPEC, {"b.txt": article(1, changed=4)})
    assert dataset.record(SPEC, again).body["parts"] == []
    assert dataset.release(SPEC).version.name == "texts@1"


def test_document_is_no_copy_of_the_one_that_it_replaces(dataset: Any) -> None:
    """A raw object that changed: its published sample leaves with the next version."""
    dataset.batch(SPEC, {"a.txt": article(1), "b.txt": article(2)})
    version = dataset.release(SPEC).version
    table = version.samples().collect()
    (key,) = table.filter(table["raw_key"] == "a.txt")["key"]
    changed = sign_documents(["new"], text_signature(article(1, changed=4).decode())[None])
    near = near_published(changed, version, TextMatch(), but=())
    assert [near.keys[ordinal] for ordinal in near.ordinal.tolist()] == [key]
    assert len(near_published(changed, version, TextMatch(), but={key}).ordinal) == 0


def test_excluded_document_has_no_copies(dataset: Any) -> None:
    dataset.batch(SPEC, {"a.txt": article(1), "b.txt": article(2)})
    version = dataset.release(SPEC).version
    table = version.samples().collect()
    (key,) = table.filter(table["raw_key"] == "a.txt")["key"]
    dataset.root.exclude("texts", [key], reason="asked by its author")
    batch = dataset.batch(SPEC, {"c.txt": article(1, changed=4), "d.txt": article(2, changed=4)})
    outcomes = {name: row["outcome"] for name, row in dataset.accounts(SPEC, batch).items()}
    assert outcomes == {"c.txt": "used", "d.txt": "dropped"}


def test_copy_of_a_marked_copy_names_what_stays(dataset: Any) -> None:
    spec = replace(SPEC, near_duplicates=NearDuplicates(action="mark", text=TextMatch()))
    dataset.batch(spec, {"a.txt": article(1)})
    dataset.release(spec)
    dataset.batch(spec, {"b.txt": article(1, changed=8)})
    dataset.release(spec)
    assert dataset.names("texts@2") == {"a.txt", "b.txt"}
    dataset.batch(spec, {"c.txt": article(1, changed=8) + b" end"})
    table = dataset.release(spec).version.samples().collect().rows_by_key("raw_key", named=True, unique=True)
    assert table["b.txt"]["dup_of"] == table["a.txt"]["key"]
    assert table["c.txt"]["dup_of"] == table["a.txt"]["key"]  # nearer to b.txt
    assert table["a.txt"]["dup_of"] is None


def test_unusable_documents_are_refused_and_empty_words_are_no_copies(dataset: Any) -> None:
    files = {
        "one.txt": b"tea",
        "again.txt": b"Tea!",
        "dots.txt": b"...",
        "dashes.txt": b"-- --",
        "half.txt": "tea \ud800".encode("utf-8", "surrogatepass"),
    }
    spec = replace(SPEC, features=(Feature(name="minhash", parameters={"max_bytes": 200}),))
    batch = dataset.batch(spec, files | {"long.txt": b"long " * 100})
    accounts = dataset.accounts(spec, batch)
    outcomes = {name: (row["outcome"], row["code"]) for name, row in accounts.items()}
    assert outcomes["dots.txt"] == outcomes["dashes.txt"] == ("used", "")
    assert sorted(outcomes[name] for name in ("one.txt", "again.txt")) == [
        ("dropped", "near_duplicate"),
        ("used", ""),
    ]
    assert "too_large" in accounts["long.txt"]["reason"]
    assert outcomes["half.txt"][0] == "rejected"


def test_photos_and_documents_of_one_batch(dataset: Any, make: Any) -> None:
    spec = replace(SPEC, features=(Feature(name="phash"), Feature(name="minhash")))
    original = make.scene(1)
    files = {"a.txt": article(1), "b.txt": article(2), "a.jpg": make.jpeg(original)}
    dataset.batch(spec, files)
    dataset.release(spec)
    batch = dataset.batch(
        spec,
        {
            "c.txt": article(1, changed=4),
            "small.jpg": make.jpeg(make.scaled(original, 0.5)),
            "new.txt": article(5),
        },
    )
    outcomes = {name: row["outcome"] for name, row in dataset.accounts(spec, batch).items()}
    assert outcomes == {"c.txt": "dropped", "small.jpg": "dropped", "new.txt": "used"}
    counts = dataset.record(spec, batch).counts
    assert (counts["near_duplicates"], counts["compared_with"]) == (2, 3)


def test_published_documents_without_a_signature_are_counted(dataset: Any) -> None:
    before = replace(SPEC, features=(), near_duplicates=None)
    dataset.batch(before, {"a.txt": article(1), "b.txt": article(2)})
    dataset.release(before)
    batch = dataset.batch(SPEC, {"c.txt": article(1, changed=4)})
    counts = dataset.record(SPEC, batch).counts
    assert (counts["compared_with"], counts["published_without_hash"], counts["samples"]) == (0, 2, 1)


def test_dataset_without_the_featurizer_is_refused() -> None:
    with refusal(InvalidSpec, what="text", where="near_duplicates", given="minhash.npy"):
        replace(SPEC, features=())
