"""Mirrors of a root with a takedown: what goes there, and what a proof sees of what their stores keep."""

import itertools
import json
import shutil

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime, Transient
from loader.storage import is_local, open_store
from loader.storage.mirror import MirroredStore
from penstock.cli import main
from penstock.denied.record import read_record
from penstock.upkeep.takedown.mirrors import purge_mirror
from penstock.upkeep.takedown.remains import Unseen, azure_remains, noncurrent
from tests.refusals import refusal

SECRET = "ZQALICEZQ"
_numbers = itertools.count()


@pytest.fixture
def root(tmp_path):
    """On a disk; not taken down yet."""
    root = loader.Root(tmp_path / "root")
    kit_write(root)
    return root


def kit_write(root):
    with root.write("photos") as writer:
        for i, who in enumerate(("bob", SECRET, "carol")):
            writer.add(f"doc{i}", {"ids.npy": np.arange(i + 3)}, {"n": i}, {"subject": who})


def save_plan(root):
    """A saved plan with a view and a table of packed sequences."""
    view = root.open("photos").where("n >= 0").select("ids.npy")
    asked = loader.pack("ids.npy", length=4, checksums=True)
    return loader.plan({"p": view}, pack=asked, seed=1, global_batch=1).save(root)


def small(store):
    return sorted(info.key for folder in ("plans/", "packs/", "views/") for info in store.list(folder))


def unclean(proof):
    return [place for place in proof["places"] if not place["clean"]]


def copy_mirror(root, url):
    """A mirror, as a migration leaves one: every object."""
    store = open_store(url, None)
    for info in root.store.list(""):
        store.put(info.key, root.store.get(info.key).data)
    return store


def follow_takedown(root, store):
    """What a migration and the mirror's own collector do after a takedown."""
    there, here = ({info.key for info in one.list("data/")} for one in (store, root.store))
    store.delete_many(sorted(there - here))
    for info in root.store.list(""):
        if not info.key.startswith(("plans/", "packs/", "views/")):
            store.put(info.key, root.store.get(info.key).data)


def take_down_mirror(kit, root, url):
    """The number of a takedown that a mirror there has followed."""
    store = copy_mirror(root, url)
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    follow_takedown(root, store)
    return n


def versioned_mirror(kit, root, client, bucket):
    """(URL, number of the takedown) of one that keeps what is deleted."""
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    url = f"s3://{bucket}/root"
    return url, take_down_mirror(kit, root, url)


def test_plans_views_and_packs_go_at_a_mirror(kit, root, tmp_path):
    save_plan(root)
    mirror = tmp_path / "mirror"
    shutil.copytree(tmp_path / "root", mirror)
    store = open_store(str(mirror), None)
    assert len(small(store)) == 5  # a plan, its start notes and view, the table and its checksums
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    follow_takedown(root, store)
    assert small(root.store) == []
    (left,) = unclean(kit.prove(root, n, mirrors=[str(mirror)]))
    assert left["why"].startswith("2 objects are still there, such as plans/")
    assert purge_mirror(str(mirror), read_record(root.store, n), root.store) == 5
    assert small(store) == []
    assert kit.prove(root, n, mirrors=[str(mirror)])["result"] == "complete"


def test_place_that_is_no_mirror_of_the_root_proves_nothing(kit, root, tmp_path):
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    loader.Root(tmp_path / "another").create()
    for name in ("not-mounted", "another"):
        (place,) = unclean(kit.prove(root, n, mirrors=[str(tmp_path / name)]))
        assert place["check"] == "mirror"


def test_record_of_a_run_that_was_copied_beside_a_mirror_goes(kit, root, tmp_path):
    path = f"trainings/big-7/failures/{'0' * 16}-000001.json"
    root.store.put(path, json.dumps({"line": f"Corrupt: {SECRET}"}).encode())
    mirror = tmp_path / "mirror"
    shutil.copytree(tmp_path / "root", mirror)
    n = kit.deny(root)
    kit.take_down(root, n)
    record, store = read_record(root.store, n), open_store(str(mirror), None)
    purge_mirror(str(mirror), record, root.store)
    assert path not in [info.key for info in store.list("trainings/")]
    store.put(path, root.store.get(path).data)
    purge_mirror(str(mirror), record, root.store)
    assert path in [info.key for info in store.list("trainings/")], "the copy of the edited one stays"


def test_views_and_packs_that_were_made_again_stay_at_a_mirror(kit, root, tmp_path):
    """Tables of packed sequences that no plan names go too, whatever version they are of."""
    kit.write(root, "texts", {"t1": "zed"})
    view = root.open("texts").where("n > 0").select("txt")
    with root.write("tokens") as writer:
        writer.add("a", {"ids.npy": np.arange(9)}, source={"subject": "zed"})
    tokens = root.open("tokens").select("ids.npy")
    save_plan(root)
    asked = loader.pack("ids.npy", length=4)
    tokens.packed(asked)
    n = kit.deny(root)
    kit.take_down(root, n)
    assert small(root.store) == []
    tokens.packed(asked)
    len(view)
    made = small(root.store)
    assert len(made) == 2
    mirror = tmp_path / "mirror"
    shutil.copytree(tmp_path / "root", mirror)
    assert purge_mirror(str(mirror), read_record(root.store, n), root.store) == 0
    assert small(open_store(str(mirror), None)) == made


def test_views_go_before_the_plans_that_name_them(kit, root):
    """Killed between the two, the next run still finds by the plans which views there are to delete."""
    save_plan(root)
    n = kit.deny(root)
    store, seen = root.store, []
    delete_many = store.delete_many

    def stops(keys):
        seen.append(list(keys))
        if any(key.startswith("plans/") for key in keys):
            raise Transient("the store went away")
        return delete_many(keys)

    store.delete_many = stops
    with pytest.raises(Transient):
        kit.take_down(root, n)
    assert [key.partition("/")[0] for key in seen[0]] == ["views", "packs", "packs"]
    store.delete_many = delete_many
    kit.take_down(root, n)
    assert small(store) == []


def test_bucket_beside_a_folder_is_no_folder(azure_account, tmp_path):
    """A mirror on this machine makes a store a local one; what its bucket keeps is looked at all the same."""
    azure_account(BLOB.format("<Deleted>true</Deleted>"))
    (tmp_path / "mirror").mkdir()
    stores = [open_store("az://bucket/root"), open_store(str(tmp_path / "mirror"))]
    both = MirroredStore(stores, lambda _: "one root")
    assert is_local(both)
    (place,) = noncurrent(both, ["data/x.tar"])
    assert (place["clean"], place["what"]) == (False, "a deleted blob")
    assert list(noncurrent(stores[1], ["data/x.tar"])) == []


def test_what_a_killed_writer_had_not_finished_in_a_folder_is_no_proof(tmp_path):
    """Whatever is in it: no listing shows it. Signs of life are written all the time."""
    store = open_store(str(tmp_path))
    paths = [f"{folder}/.tmp-0123456789abcdef" for folder in ("data/t/a", "heartbeats", "stages/d")]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"secret")
    for mirror, do in (("", "penstock gc sweep --apply deletes it"), (store.url, "delete the file")):
        found = list(noncurrent(store, ["data/x.tar"], mirror=mirror))
        assert [place["path"] for place in found] == [paths[0], paths[2]]
        assert not any(place["clean"] for place in found)
        assert do in found[0]["why"]
        assert "penstock gc sweep --apply deletes it" in found[1]["why"]


@pytest.fixture
def s3_environment(s3, monkeypatch):
    """boto3's client of the server that the environment names."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    client = boto3.client("s3")
    yield client
    client.close()


@pytest.mark.server
def test_what_a_mirrors_versioned_bucket_keeps(kit, root, tmp_path, s3_environment):
    """Noncurrent versions and unfinished uploads, named with the mirror's URL; a run with --mirror deletes them."""
    client, bucket = s3_environment, f"versioned-mirror-{next(_numbers)}"
    url, n = versioned_mirror(kit, root, client, bucket)
    paths = read_record(root.store, n).paths
    shard = next(path for path in paths if path.endswith(".tar"))
    client.create_multipart_upload(Bucket=bucket, Key=f"root/{shard}")
    proof = kit.prove(root, n, mirrors=[url])
    assert proof["result"] == "incomplete"
    left = unclean(proof)
    assert {(one["check"], one["url"]) for one in left} == {("noncurrent", url)}
    assert {one["path"] for one in left} == set(paths)
    assert {one["why"] for one in left} == {f"penstock takedown run --apply --mirror {url} deletes it"}
    place = str(tmp_path / "root")
    assert main(["takedown", "run", str(n), "--root", place, "--apply", "--mirror", url]) == 0
    assert main(["takedown", "prove", str(n), "--root", place, "--mirror", url]) == 0


@pytest.mark.server
def test_what_a_mirror_in_azure_keeps(kit, root, azure, monkeypatch):
    """As far as Azurite has it: blocks that nobody committed, and a snapshot of what is there again."""
    from azure.storage.blob import BlobServiceClient

    told = f"AccountName={azure['account_name']};AccountKey={azure['account_key']};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{told}BlobEndpoint={azure['endpoint']};")
    url = f"az://bucket/takedown-{next(_numbers)}"
    n = take_down_mirror(kit, root, url)
    proof = kit.prove(root, n, mirrors=[url])
    assert proof["result"] == "complete", unclean(proof)
    (seen,) = (one for one in proof["places"] if one["check"] == "noncurrent")
    assert (seen["url"], "paths has any" in seen["evidence"]) == (url, True)
    first, second = read_record(root.store, n).paths[:2]
    keys = {name: azure[name] for name in ("account_name", "account_key")}
    with BlobServiceClient(azure["endpoint"], keys) as service:
        blobs = service.get_container_client("bucket")
        under = url.removeprefix("az://bucket/")
        blobs.get_blob_client(f"{under}/{first}").stage_block("AAAA", b"bytes of a sample")
        blobs.upload_blob(f"{under}/{first}.longer", b"another object")
        blobs.upload_blob(f"{under}/{second}", b"")
        blobs.get_blob_client(f"{under}/{second}").create_snapshot()
    found = {
        (one["what"].split(" 2")[0], one.get("path")) for one in unclean(kit.prove(root, n, mirrors=[url]))
    }
    assert found == {("a mirror", None), ("blocks that were never committed", first), ("snapshot", second)}


BLOB = (
    "<Blob><Name>root/data/x.tar</Name>{}<Properties><Content-Length>1</Content-Length><BlobType>BlockBlob</BlobType>"
    "<RemainingRetentionDays>3</RemainingRetentionDays></Properties></Blob>"
)
VERSION = "<VersionId>2026-01-01T00:00:00.0000000Z</VersionId>"
ANSWERS = {
    f"{VERSION}<IsCurrentVersion>true</IsCurrentVersion>": [],
    VERSION: ["noncurrent version 2026-01-01T00:00:00.0000000Z"],
    "<HasVersionsOnly>true</HasVersionsOnly>": ["noncurrent version"],
    "<Deleted>true</Deleted>": ["a deleted blob"],
    "<Snapshot>2026-01-01T00:00:00.0000000Z</Snapshot>": ["snapshot 2026-01-01T00:00:00.0000000Z"],
}


@pytest.fixture
def azure_account(shared, monkeypatch):
    """azure_account(blob, hns=, status=): an account of Azure's that answers in the form that Microsoft documents."""
    running = []

    def start(blob="", hns="false", status=200):
        def origin(request):
            if request.query.get("comp") == "list" and status == 200:
                listed = f"<EnumerationResults><Blobs>{blob}</Blobs><NextMarker/></EnumerationResults>"
                return 200, f'<?xml version="1.0"?>{listed}'.encode(), {"content-type": "application/xml"}
            return status, b"", {"x-ms-is-hns-enabled": hns, "x-ms-sku-name": "Standard_LRS", "etag": '"0x1"'}

        running.append(shared("servers/http").HttpServer(origin))
        told = f"AccountName=lab;AccountKey=UExBTlRFRA==;BlobEndpoint={running[-1].endpoint}/lab;"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", told)

    yield start
    for server in running:
        server.close()


@pytest.mark.parametrize("told", ANSWERS)
def test_what_azure_says_it_keeps(azure_account, told):
    azure_account(BLOB.format(told))
    found = list(azure_remains("az://bucket/root", ["data/x.tar"]))
    assert [one.what for one in found] == ANSWERS[told]
    assert all(one.hindrance and one.path == "data/x.tar" for one in found)
    assert not found or "soft" not in found[0].hindrance or "3 more days" in found[0].hindrance


@pytest.mark.parametrize(
    ("how", "what", "fault"),
    [
        ({"hns": "true"}, "account", "a hierarchical namespace"),
        ({"status": 403}, "listing", "HttpResponseError"),
    ],
)
def test_what_azure_does_not_say(azure_account, how, what, fault):
    azure_account(**how)
    with refusal(Unseen, what=what, given=fault):
        list(azure_remains("az://bucket/root", ["data/x.tar"]))
    (place,) = noncurrent(open_store("az://bucket/root"), ["data/x.tar"])
    assert not place["clean"]
    assert "pass --keeps-nothing az://bucket/root" in place["why"]


def test_store_that_cannot_be_looked_at_is_incomplete_until_its_operator_tells(kit, gcs):
    with loader.Root(f"gs://bucket/takedown-{next(_numbers)}", options=gcs) as root:
        kit_write(root)
        n = kit.deny(root)
        kit.take_down(root, n)
        kit.sweep(root)
        (left,) = unclean(kit.prove(root, n))
        assert (left["check"], left["url"]) == ("noncurrent", root.url)
        assert f"pass --keeps-nothing {root.url}" in left["why"]
        proof = kit.prove(root, n, keeps_nothing=[root.url])
        assert proof["result"] == "complete"
        (told,) = (one for one in proof["places"] if one["check"] == "noncurrent")
        assert told["evidence"].startswith("stated by the author of this proof, not listed")
        assert SECRET not in json.dumps(proof)
        stores = [root.url]
        with refusal(InvalidRuntime, what="--keeps-nothing", given="gs://other", accepted=stores):
            kit.prove(root, n, keeps_nothing=["gs://other"])


@pytest.mark.server
def test_what_is_told_of_a_store_that_can_be_looked_at_counts_for_nothing(kit, root, s3_environment):
    url, n = versioned_mirror(kit, root, s3_environment, f"versioned-told-{next(_numbers)}")
    assert kit.prove(root, n, mirrors=[url], keeps_nothing=[url])["result"] == "incomplete"


@pytest.mark.server
def test_mirror_that_may_not_be_asked_what_it_keeps(kit, root, s3_environment):
    """A bucket that is gone is one too."""
    (place,) = noncurrent(open_store("s3://no-such-bucket/root"), ["data/x.tar"])
    assert (place["clean"], "they cannot be listed: ClientError" in place["why"]) == (False, False)
