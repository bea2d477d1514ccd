"""A document that was packed is taken down: its sequences, lists and plans go too, and the proof finds no trace."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.root import root_in_store
from loader.dataset.tables.manifest import references
from loader.dataset.versions.version import Version
from loader.errors import Denied
from loader.storage import open_store
from penstock.cli import main
from penstock.packing.denied_sequences import pending_sequences
from penstock.packing.pack import pack_documents
from tests.mortal_store import Death, Killed, stop
from tests.penstock.packing.conftest import STARTS, TOKENS, assert_same
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal

SECRET = "ZQALICEZQ"
LENGTHS = [11, 100, *[11] * 18]
REQUEST = loader.pack(TOKENS, 32)
"""Document 1 is in four sequences."""


def write(documents, root):
    return documents.write(root, LENGTHS, sources={1: {"subject": SECRET}})


def verb(capsys, root, *words):
    """Return (exit status, JSON) of a verb."""
    status = main([*words, "--json", "--root", root.url])
    return status, json.loads(capsys.readouterr().out)


def sweep(root):
    """Delete what a collector deletes once its grace is over: all that only retired versions have."""
    live = set()
    for dataset in root.state.datasets:
        for record in root.state.versions(dataset):
            if record.retired is None:
                version = Version.of_record(root.store, record)
                live |= {record.manifest, *(one.path for one in references(root.store, version.manifest))}
    root.store.delete_many([info.key for info in root.store.list("data/") if info.key not in live])


def traces(documents, root):
    """Return the objects that have the secret document's tokens or name its subject."""
    tokens = documents.document(1, 100)[TOKENS]
    words = [tokens[first : first + 16].tobytes() for first in range(0, 80, 8)]
    words += [SECRET.encode(), b"doc-00001"]
    found = []
    for info in root.store.list(""):
        data = root.store.get(info.key).data
        if any(word in data for word in words):
            found.append(info.key)
    return found


def test_packed_document_leaves_no_trace_while_a_run_continues(documents, capsys):
    root = documents.root()
    docs = write(documents, root)
    pack_documents(root, "docs@1", "packed", REQUEST)
    packed = root.open("packed@1")
    view = packed.select(TOKENS, STARTS)
    listed = loader.listed(view, np.arange(len(packed)))
    plan = documents.plan(view)
    for saved in (plan, documents.plan(listed), documents.plan(docs.select(TOKENS), pack=REQUEST)):
        saved.save(root)
    assert traces(documents, root)

    with loader.Loader(
        plan, 0, 1, epochs=1, workers=0, framework="numpy", transform=loader.laid_out(TOKENS)
    ) as batches:
        next(batches)
        words = ("--subject", SECRET, "--reason", "ticket 12", "--by", "privacy desk")
        status, requested = verb(capsys, root, "takedown", "request", *words)
        assert (status, requested["sequences"]) == (0, 4)
        status, (ran,) = verb(capsys, root, "takedown", "run", str(requested["takedown"]), "--apply")
        assert (status, ran["samples"]) == (0, {"docs": 1, "packed": 4})
        rest = list(batches)  # the run goes on: its version's bytes stay until the collector
    assert sum(int(batch.mask.sum()) for batch in rest) == len(packed) - 4
    sweep(root)
    status, proof = verb(capsys, root, "takedown", "prove", str(requested["takedown"]))
    assert status == 0, [place for place in proof["places"] if not place["clean"]]
    assert traces(documents, root) == []
    assert len(root.open("packed@2")) == len(packed) - 4

    # The version without the document is packed as if it had never been there.
    report = pack_documents(root, "docs@2", "packed", REQUEST)
    stored = documents.stored(root.open(report.id))
    assert_same(stored, documents.sequences(documents.plan(root.open("docs@2").select(TOKENS), pack=REQUEST)))
    assert traces(documents, root) == []


@pytest.mark.parametrize(
    "target",
    [
        Target(kind="subject", value=SECRET),
        Target(kind="sample", value="doc-00001", dataset="docs"),
    ],
)
def test_sequences_of_a_denied_document_are_not_published(documents, target):
    root = documents.root()
    write(documents, root)
    deny = root.log.deny([target], "ticket 12", "privacy desk")
    report = pack_documents(root, "docs@1", "packed", REQUEST)
    assert report.denied == 4
    assert f"{report.denied} sequences left out" in report.to_text()
    version = root.open("packed@1")
    assert all("doc-00001" not in str(sample) for sample in version.select("members.json"))
    assert version.manifest["denies"] == deny.n


def test_takedown_that_arrives_in_mid_write_stops_the_commit(documents):
    """No part with the document is left, and the same command leaves its sequences out."""
    root = documents.root()
    write(documents, root)
    target = Target(kind="subject", value=SECRET)
    death = Death(
        3, "after", {"put", "put_if_absent", "put_file"}, lambda: root.log.deny([target], "ticket 12", "desk")
    )
    interrupted = root_in_store(death.of(open_store(root.url)))
    with refusal(Denied, what="takedown", within="docs@1 sequence 'sequence-"):
        pack_documents(interrupted, "docs@1", "packed", REQUEST)
    assert root.state.newest("packed") is None
    assert all("/members-" not in info.key for info in root.store.list("data/"))
    assert pack_documents(root, "docs@1", "packed", REQUEST).denied == 4


@pytest.mark.parametrize("kind", ["subject", "raw"])
def test_document_without_a_version_is_found_by_its_source(documents, capsys, kind):
    """The documents' versions are retired and collected. The sequences keep what names each document."""
    root = documents.root()
    source = {"raw_key": "alice.txt", "raw_uri": "s3://raw/alice.txt", "subject": SECRET}
    docs = documents.write(root, LENGTHS, sources={1: source})
    pack_documents(root, "docs@1", "packed", REQUEST)
    (entry,) = [one for one in docs.manifest["samples"] if one["group"] == "keys"]
    root.retire("docs@1", reason="replaced")
    root.store.delete_many([entry["path"]])
    value = {"subject": SECRET, "raw": source["raw_uri"]}[kind]
    words = (f"--{kind}", value, "--reason", "ticket 12", "--by", "privacy desk")
    status, requested = verb(capsys, root, "takedown", "request", *words)
    assert (status, requested["sequences"]) == (0, 4)


def test_request_denies_sequences_of_a_killed_command(documents, capsys):
    root = documents.root()
    write(documents, root)
    for at in range(2, 30, 3):
        store = Death(at, "before", {"put", "put_if_absent", "put_file"}, stop).of(open_store(root.url))
        try:
            pack_documents(root_in_store(store), "docs@1", f"packed-{at}", REQUEST)
        except Killed:
            continue
        break
    waiting = {info.key.split("/")[1] for info in root.store.list("data/") if "/members-" in info.key}
    assert waiting
    words = ("--sample", "doc-00001", "--dataset", "docs", "--reason", "ticket 12", "--by", "privacy desk")
    _, requested = verb(capsys, root, "takedown", "request", *words)
    assert requested["sequences"] == 4 * len(waiting)


def test_sequences_published_during_a_request_are_denied_by_the_run(documents, capsys):
    root = documents.root()
    write(documents, root)
    pack_documents(root, "docs@1", "packed", REQUEST)
    target = Target(kind="subject", value=SECRET)
    deny = root.log.deny([target], "ticket 12", "desk")  # as if the sequences came after the request's scan
    status = main(["takedown", "prove", str(deny.n), "--root", root.url])
    assert status == 2
    assert f"penstock takedown run {deny.n} --apply" in capsys.readouterr().err
    _, (own, late) = verb(capsys, root, "takedown", "run", str(deny.n), "--apply")
    assert (own["samples"], late["samples"]) == ({"docs": 1}, {"packed": 4})


def test_request_lists_no_transaction_of_other_datasets(documents):
    root = documents.root()
    documents.write(root, [11] * 4)
    waiting = root.begin("docs")
    deny = root.log.deny([Target(kind="sample", value="doc-00001", dataset="docs")], "ticket 12", "desk")
    store = ObservedStore(open_store(root.url))
    observed_root = root_in_store(store)
    assert pending_sequences(observed_root, [deny]) == {}
    assert ("list", f"data/{waiting}/") not in store.calls
    killed = root.begin("new")  # it may be a killed command's
    pending_sequences(observed_root, [deny])
    assert ("list", f"data/{killed}/") in store.calls
