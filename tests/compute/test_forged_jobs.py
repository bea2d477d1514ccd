"""Whoever may write `jobs/` makes nobody else's nodes run, read or write what their submitter did not ask for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from loader.errors import Changed, Corrupt, InvalidRuntime, JobFailed
from loader.storage import open_store
from penstock.cli import main
from penstock.compute import runner_process, submit
from penstock.compute.attach import attach
from penstock.compute.cluster import Cluster, Slot
from penstock.compute.engines.kubernetes import KubernetesCluster, job_object
from penstock.compute.engines.local_engine import InlineEngine
from penstock.compute.engines.slurm import element_script
from penstock.compute.job import Head, JobFolder, StoredOutcome, job_ids
from penstock.compute.job_json import to_frame, to_json
from penstock.compute.pool import InlineCompute
from penstock.compute.runner import REFUSED
from penstock.compute.runner_process import open_runner, parser
from penstock.compute.submit import submit_job
from penstock.compute.work import StoredPlace
from penstock.upkeep.verify.version import verify
from tests.compute.forged_copy import forged_copy
from tests.compute.job_checks import bytes_done, done_by, folder_of, job_in, numbers, told_of
from tests.compute.works import RUNS, Number, Run
from tests.refusals import refusal

INLINE, LOCAL = Cluster(engine="inline", packages=("tests",)), Cluster(engine="local", packages=("tests",))
CLUSTERS = pytest.mark.parametrize("cluster", [INLINE, LOCAL], ids=["inline", "local"])


@pytest.fixture
def node(tmp_path):
    """A folder of the node with a secret, a folder of packages, and a root with a version d@1."""
    secrets, packages = tmp_path / "secrets", tmp_path / "packages"
    secrets.mkdir()
    packages.mkdir()
    (secrets / "key.pth").write_text("import os")
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=6) as writer:
        for i in range(12):
            writer.add(f"k{i:02d}", {"x": b"%02d" % i * 50})
    return secrets, packages, root


def first_ids(root, monkeypatch) -> list[str]:
    """Ids of the first job that `verify --full --cluster` would submit, as anybody can compute them."""
    asked = []

    def submitting(job, units, **_):
        asked.append(job.id)
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.compute.attach.submit_job", submitting)
        with pytest.raises(InterruptedError):
            verify(root, "d", full=True, cluster=INLINE)
    return asked


@pytest.mark.parametrize(
    ("cluster", "into_root"), [(INLINE, True), (LOCAL, False)], ids=["inline-root", "local-packages"]
)
def test_job_that_was_forged_before_its_submission_is_named_and_never_run(
    node, tmp_path, cluster, into_root, monkeypatch, caplog
):
    secrets, packages, root = node
    (id_,) = first_ids(root, monkeypatch)
    target = Path(root.url) if into_root else packages
    forged_copy(root.store, id_, secrets, target, tmp_path)
    before = {info.key: info.etag for info in root.store.list(f"jobs/{id_}/")}
    assert verify(root, "d", full=True, cluster=cluster).problems == []
    assert not list(target.rglob("key.pth"))
    assert f"jobs/{id_}/" in caplog.text
    assert "other work, name, stores" in caplog.text
    after = {info.key: info.etag for info in root.store.list(f"jobs/{id_}/")}
    assert after == before, "it is left alone"
    assert len(list(job_ids(root.store))) == 2


def forging(forge):
    """An inline engine; `forge` changes the folder between the submission and the runner."""

    class Forging(InlineEngine):
        def submit(self, name, runner, n_blocks, final=(0,)):
            forge()
            super().submit(name, runner, n_blocks, final)

    return Forging()


def test_description_that_is_replaced_behind_its_submission_is_refused(node, tmp_path):
    secrets, packages, _ = node
    job = job_in(tmp_path / "jobs")
    folder = folder_of(job)
    engine = forging(lambda: forged_copy(job.store, job.id, secrets, packages, tmp_path))
    with refusal(Changed, what="description", where=f"{job.store.url}/{folder.key('job.json')}"):
        list(attach(job, numbers(4), engine, INLINE))
    assert not list(packages.iterdir())
    assert folder.done() == []


def test_runner_of_a_replaced_description_ends_for_good_and_says_why(node, tmp_path, capsys):
    secrets, packages, _ = node
    job = job_in(tmp_path / "jobs")
    there = submit_job(job, numbers(4))
    command = LOCAL.runner(there.folder, 1, there.description.sha256)[3:]
    forged_copy(job.store, job.id, secrets, packages, tmp_path)
    assert runner_process.main([*command, "--element", "0", "--elements", "1"]) == REFUSED
    assert "is not the description that was submitted" in capsys.readouterr().err
    assert not list(packages.iterdir())


def test_units_that_are_replaced_behind_the_description_are_refused(tmp_path):
    """The runner reads the description first, and the units of each block later."""
    job = job_in(tmp_path)
    there = submit_job(job, numbers(4))
    key = there.folder.key(f"units-{there.description.units}.jsonl.zst")
    data = bytes(job.store.get(key).data)
    _, offset, nbytes = there.description.blocks[1]
    forged = to_frame(to_json(Number(n=n)) for n in (7, 8, 9))
    assert len(forged) == nbytes, "the description's range holds it whole"
    command = INLINE.runner(there.folder, 1, there.description.sha256)[3:]
    given = parser().parse_args([*command, "--element", "0", "--elements", "1"])
    runner = open_runner(given, lambda _: InlineCompute())
    job.store.put(key, data[:offset] + forged)
    with refusal(Changed, what="units", where=f"{job.store.url}/block 1 of {key}"):
        runner.run()
    assert 1 not in there.folder.done()


@pytest.mark.parametrize(
    "change",
    [
        {"work": "tests.compute.works:ON_GPUS"},
        {"name": "other"},
        {"version": "2"},
        {"code": "0" * 64},
        {"python": "3.99"},
        {"stores": [StoredPlace(url="/etc", options={})]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_description_with_another_field_is_left_alone(tmp_path, change, caplog):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    there = submit_job(job, numbers(3))
    job.store.put(folder.key("job.json"), to_json(replace(there.description, **change)))
    assert told_of(done_by(job, numbers(3), INLINE)) == [0, 1, 4]
    assert (
        f"{folder.key('')} in {job.store.url} is not used: it holds another job (other {next(iter(change))})"
        in (caplog.text)
    )
    assert folder.done() == []
    assert job_with_attempt(job, 1) in list(job_ids(job.store))


def job_with_attempt(job, attempt):
    return replace(job, attempt=attempt).id


def test_description_that_differs_in_what_may_differ_is_taken(tmp_path, caplog):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    there = submit_job(job, numbers(3))
    other = replace(there.description, about="in other words", at_us=1, token="12345678")
    job.store.put(folder.key("job.json"), to_json(other))
    assert told_of(done_by(job, numbers(3), INLINE)) == [0, 1, 4]
    assert folder.done() == [0, 1]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "text",
    [
        b"{]",
        b"",
        b'{"work": 1}',
        b"\xff\xfe",
        b'{"x":' * 10**5 + b"1" + b"}" * 10**5,
        "token",
        "units",
        "spaces",
    ],
    ids=lambda text: str(text)[:20],
)
def test_description_that_is_none_is_left_alone(tmp_path, text, caplog):
    """Also one whose token or name of units leads out of the folder, and one of other bytes than ours."""
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    there = submit_job(job, numbers(3))
    body = json.loads(to_json(there.description))
    if text == "token":
        text = json.dumps({**body, "token": "/../../../x"}).encode()
    elif text == "units":
        text = json.dumps({**body, "units": "/../../../x"}).encode()
    elif text == "spaces":
        text = json.dumps(body, indent=1).encode()
    job.store.put(folder.key("job.json"), text)
    assert told_of(done_by(job, numbers(3), INLINE)) == [0, 1, 4]
    assert folder.id in caplog.text
    assert bytes(job.store.get(folder.key("job.json")).data) == text


def test_ids_forged_in_advance_for_many_attempts_end_in_a_job_that_names_them(tmp_path, caplog):
    job = job_in(tmp_path)
    for attempt in range(submit.MAX_OTHERS):
        job.store.put(JobFolder(job.store, job_with_attempt(job, attempt)).key("job.json"), b"{}")
    with refusal(
        JobFailed, what="folders", where=f"{job.store.url}/jobs/", given=submit.MAX_OTHERS
    ) as forged:
        done_by(job, numbers(3), INLINE)
    assert "penstock jobs clear" in str(forged.value)
    assert len(caplog.records) == submit.MAX_OTHERS


def test_folder_that_is_begun_again_is_emptied_up_to_its_links(tmp_path, caplog):
    """Whoever may write `jobs/` may lay a description without units there, and a link to files of somebody else."""
    job, folder, other = job_in(tmp_path / "root"), folder_of(job_in(tmp_path / "root")), tmp_path / "other"
    there = submit_job(job, numbers(3))
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    Path(job.store.url, folder.key("link")).symlink_to(other)
    Path(job.store.url, folder.key(f"units-{there.description.units}.jsonl.zst")).unlink()
    folder.store.put(folder.key("stray"), b"")
    assert told_of(done_by(job, numbers(3), INLINE)) == [0, 1, 4]
    assert not list(job.store.list(folder.key("stray")))
    assert folder.remove() > 0
    assert (other / "thesis.tex").read_text() == "x"
    assert "link is a symbolic link" in caplog.text


def test_forged_folders_do_not_stop_a_list_of_jobs(node, capsys):
    _, _, root = node
    deep, given = b'{"x":' * 10**5 + b"1" + b"}" * 10**5, "1" * 32
    root.store.put(f"jobs/{'0' * 32}/job.json", deep)
    there = submit_job(replace(job_in(Path(root.url)), fingerprint="g"), numbers(3))
    root.store.put(there.folder.key("given/1.json"), b"[")
    folder = Path(root.url, f"jobs/{given}")
    folder.mkdir()
    (folder / "job.json").symlink_to("job.json")
    (folder / "x").write_bytes(b"")
    assert main(["jobs", "ls", "--root", root.url]) == 1
    said = capsys.readouterr().out
    assert "maximum recursion depth" in said
    assert "given/1.json is not a valid AttemptRecord" in said


@pytest.mark.parametrize("id_", ["..", "../x", "", ".", "a/b", "0" * 31 + "/", "A" * 32])
def test_id_that_leads_elsewhere_is_refused(tmp_path, id_):
    store = open_store(str(tmp_path))
    with refusal(InvalidRuntime, what="job", given=id_):
        JobFolder(store, id_)


def test_units_that_differ_only_in_the_run_are_the_same_job(tmp_path, caplog):
    """As those of a batch whose run died: the next run goes on with its job, under the first one's units."""
    job = replace(job_in(tmp_path), work=RUNS)
    first = submit_job(job, lambda: [Run(n=n, run_id="first") for n in range(3)])
    second = submit_job(job, lambda: [Run(n=n, run_id="second") for n in range(3)])
    assert second.description == first.description
    other = submit_job(job, lambda: [Run(n=n + 1, run_id="second") for n in range(3)])
    assert other.folder.id == job_with_attempt(job, 1)
    assert "other units" in caplog.text


def test_stray_objects_of_a_folder_stop_nobody(tmp_path):
    """Attempts and blocks with numbers that no job has."""
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    submit_job(job, numbers(3))
    folder.put_done(999, Head(), [StoredOutcome(code="exception", reason="forged")])
    folder.store.put(folder.key("done/" + "9" * 200 + ".jsonl.zst"), b"")
    given = {"by": "x", "at_us": 1, "n_begun": 0, "placed": True}
    folder.store.put(folder.key("given/999999999999.json"), json.dumps(given).encode())
    assert told_of(done_by(job, numbers(3), INLINE)) == [0, 1, 4]
    assert "jobs" in bytes_done(job).popitem()[0]


def test_outcomes_of_another_type_are_refused(tmp_path):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    submit_job(job, numbers(3))
    folder.put_done(0, Head(), [StoredOutcome(result={"n": 0, "square": "text"})])
    with refusal(Corrupt, what="StoredOutcome", within="done/0"):
        done_by(job, numbers(3), INLINE)


def test_every_engine_carries_the_digest_of_the_description(tmp_path):
    there = submit_job(job_in(tmp_path), numbers(3))
    sha256 = there.description.sha256
    runner = Cluster(engine="slurm", slot=Slot(cpus=1)).runner(there.folder, 1, sha256)
    assert runner[runner.index("--sha256") + 1] == sha256
    assert f"--sha256 {sha256}" in element_script(runner, environment="", first=0, elements=1)
    cluster = KubernetesCluster(slots=1, image="registry/penstock@sha256:" + "0" * 64)
    body = job_object(cluster, "pk-1", runner, 2, (0,))
    command = body["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--sha256") + 1] == sha256
    without = [word for word in runner[3:] if word not in ("--sha256", sha256)]
    with pytest.raises(SystemExit):
        parser().parse_args([*without, "--element", "0", "--elements", "1"])
