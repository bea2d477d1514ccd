"""`penstock takedown run|prove --cluster`: the machines of a cluster find what one process finds, and learn no name."""

import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.compute.job import JobFolder, job_ids
from penstock.denied import keys_job
from penstock.denied.find import find
from penstock.denied.keys_job import KeysTablesOnCluster
from penstock.denied.keys_tables import KeysTables
from penstock.denied.record import read_record
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.scan import Scan
from penstock.upkeep.takedown.scan_job import scan_on_cluster
from penstock.upkeep.takedown.takedown_run import run_takedown

SECRET = "ZQ ALICE ZQ"
INLINE = Cluster(engine="inline")


@pytest.fixture
def root(kit, tmp_path):
    """Samples of the subject and of others, one that shares a raw object; a part that waits; a takedown."""
    root = loader.Root(tmp_path / "root")
    for first in (0, 2):
        kit.write(
            root,
            "photos",
            {f"{SECRET}/{first}": SECRET, f"p{first}": "bob", f"p{first + 1}": "carol"},
            part_samples=2,
        )
    kit.write(root, "clips", {"c1": SECRET, "c2": "zed"})
    shared = {"subject": "zed", "raw_key": "raw/c1.jpg"}
    with root.write("clips", groups={"cls": "labels"}) as writer:
        writer.add("c3", {"txt": "x", "cls": 1}, {"who": "zed", "n": 1, "dup_of": "c1"}, shared)
    waits = ("w1", {"txt": "x"}, {}, {"subject": SECRET, "raw_key": "raw/w1.jpg"})
    loader.write_part(root, root.begin("clips"), [waits])
    root.log.deny((Target(kind="subject", value=SECRET),), "ticket 12", "privacy desk")
    return root


def number(root):
    (deny,) = root.state.denies
    return deny.n


def in_jobs(store):
    """All that lies in the folders of data jobs, unpacked."""
    text = b""
    for info in store.list("jobs/"):
        data = bytes(store.get(info.key).data)
        text += info.key.encode() + data
        if info.key.endswith(".zst"):
            text += pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return text


def without_time(proof):
    """A proof without its time, and the count of objects: jobs have some too."""
    places = [
        {**place, "what": "objects"} if place["check"] == "scan" and "path" not in place else place
        for place in proof["places"]
    ]
    return {**proof, "at_us": 0, "places": places}


def leave(root):
    """Names that a run would find: in a text, a table that is damaged, a record."""
    for name, table in {
        "notes": {"reason": [f"near {SECRET}, it is said", "c2"]},
        "lineage": {"in_id": [f"{SECRET}/0", "p0"]},
        "clean": {"reason": ["blurred"]},
    }.items():
        sink = io.BytesIO()
        pq.write_table(pa.table(table), sink)
        root.store.put(f"tables/photos/{name}/1/x.parquet", sink.getvalue())
    root.store.put("tables/clips/notes/1/cut.parquet", b"PAR1 cut")
    root.store.put(
        "stages/clips/units/1/000000000001.json", json.dumps({"exclude": {"source/c1": 1}}).encode()
    )
    root.store.put("reports/one.json", json.dumps({"reason": f"of {SECRET}"}).encode())


def names_nobody(root):
    """Whether the folders of jobs, of which there are some, name neither the subject nor a sample."""
    said = in_jobs(root.store)
    assert b"takedown" in said
    names = (SECRET, SECRET.split()[1], "raw/", "source/", "unit/", "bob")
    return not [name for name in names if name.encode() in said]


def test_proof_is_that_of_one_process(root):
    leave(root)
    n = number(root)
    here, there = (prove(loader.Root(root.url), n, cluster=one) for one in (None, INLINE))
    assert without_time(there) == without_time(here)
    wrong = {
        place.get("path"): place["why"]
        for place in there["places"]
        if place["check"] == "scan" and not place["clean"]
    }
    named = ("tables/photos/notes/1/x.parquet", "stages/clips/units/1/000000000001.json", "reports/one.json")
    assert set(named) <= set(wrong)
    assert "could not be read" in wrong["tables/clips/notes/1/cut.parquet"]
    assert "tables/photos/clean/1/x.parquet" not in wrong
    assert len(list(job_ids(root.store))) == 5
    assert names_nobody(root)


def test_worker_processes_find_the_same(root):
    leave(root)
    deny = root.state.denies[0]
    local = Cluster(engine="local")
    here = find(KeysTables(root, deny), "clips")
    there = find(KeysTablesOnCluster(root, deny, local), "clips")
    assert there == here
    assert here.rows
    assert here.marks.plain
    assert here.marks.others
    record, infos = read_record(root.store, deny.n), list(root.store.list("reports/"))
    assert list(scan_on_cluster(local, root, record, [there], infos)) == [("reports/one.json", "")]
    assert names_nobody(root)


def test_run_is_that_of_one_process(root, kit, tmp_path):
    shutil.copytree(root.url, tmp_path / "same")
    same = loader.Root(tmp_path / "same")
    n = number(root)
    assert run_takedown(root, n, apply=False, cluster=INLINE) == run_takedown(same, n, apply=False)
    here, there = run_takedown(same, n, apply=True), run_takedown(root, n, apply=True, cluster=INLINE)
    assert (there.samples, there.new, there.retired) == (here.samples, here.new, here.retired)
    assert there.waiting == here.waiting
    for one in (same, root):
        kit.sweep(one)
    assert kit.found(root, SECRET) == kit.found(same, SECRET)
    assert names_nobody(root)
    assert without_time(prove(root, n, cluster=INLINE)) == without_time(prove(root, n))


def test_object_that_a_machine_cannot_read_is_read_here(root, monkeypatch):
    def breaks(*_):
        raise KeyError(SECRET)

    n = number(root)
    expected = without_time(prove(root, n))
    with monkeypatch.context() as broken:
        broken.setattr(keys_job, "denied_rows", breaks)
        broken.setattr(keys_job, "shared_marks", breaks)
        broken.setattr("penstock.upkeep.takedown.scan_job.deny_entry", breaks)
        assert without_time(prove(root, n, cluster=INLINE)) == expected
    said = in_jobs(root.store)
    assert b'"error":"KeyError"' in said
    assert SECRET.encode() not in said
    monkeypatch.setattr(Scan, "verdict", breaks)
    with pytest.raises(KeyError):
        prove(root, n, cluster=INLINE)
    assert SECRET.encode() not in in_jobs(root.store)


def test_names_in_the_folders_of_other_jobs_are_found(root, kit):
    n = number(root)
    kit.take_down(root, n)
    kit.sweep(root)
    folder = JobFolder(root.store, "ab" * 16)
    lines = [json.dumps({"key": "c1"}).encode(), b"{}"]
    frames = b"".join(pa.compress(line + b"\n", codec="zstd", asbytes=True) for line in reversed(lines))
    root.store.put(folder.key("units-0.jsonl.zst"), frames)
    root.store.put(folder.key("logs/0-1.txt"), b"ValueError: unit/c1 is odd\nTraceback")
    root.store.put(folder.key("done/0.jsonl.zst"), pa.compress(b'{"key":"c2"}\n', codec="zstd", asbytes=True))
    root.store.put(folder.key("done/1.jsonl.zst"), b"cut")
    root.store.put(folder.key("stop"), b"")
    proof = prove(root, n)
    wrong = {
        place["path"]: place["why"] for place in proof["places"] if not place["clean"] and "path" in place
    }
    jobs = {path: why for path, why in wrong.items() if path.startswith("jobs/")}
    assert set(jobs) == {folder.key(one) for one in ("units-0.jsonl.zst", "logs/0-1.txt", "done/1.jsonl.zst")}
    assert "penstock jobs clear" in jobs[folder.key("logs/0-1.txt")]
    folder.remove()
    assert not [place for place in prove(root, n)["places"] if place.get("path", "").startswith("jobs/")]


def test_verbs_take_a_cluster(root, tmp_path, capsys):
    from penstock.cli import main

    file = tmp_path / "here.toml"
    file.write_text('engine = "inline"\n')
    n = str(number(root))
    assert main(["takedown", "run", n, "--cluster", str(file), "--root", root.url]) == 0
    assert "takedown" in capsys.readouterr().out
    assert main(["takedown", "prove", n, "--cluster", str(file), "--root", root.url]) == 1
    assert len(list(job_ids(open_store(root.url)))) > 2
