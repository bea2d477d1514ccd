"""The policies let each role do what the code does, name every prefix of the format, and are what the page says."""

import importlib.util
import itertools
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

import loader
from penstock.upkeep.exclusion import exclude
from penstock.upkeep.gc import Options, collect
from tests.servers.processes import python

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "deploy" / "policies" / "make.py"
PAGE = REPOSITORY / "docs" / "security.md"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("penstock_policies", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recording:
    """Passes every verb on; keeps those that write."""

    def __init__(self, store):
        self.store, self.url, self.done = store, store.url, set()

    def __getattr__(self, name):
        verb = getattr(self.store, name)
        what = {"put_if_absent": "create", "put": "put", "put_file": "put", "delete_many": "delete"}.get(name)
        if what is None:
            return verb

        def call(*given, **named):
            given = [list(given[0]), *given[1:]] if what == "delete" else given
            for key in given[0] if what == "delete" else given[:1]:
                self.done.add((what, key))
            return verb(*given, **named)

        return call


def as_role(url):
    root = loader.Root(url)
    recording = Recording(root.store)
    root._use(recording, "crc32c")
    return root, recording


def fits(place, key):
    return fnmatchcase(key, place if "*" in place or place.endswith(".json") else f"{place}*")


def is_allowed(make, role, what, key):
    verbs = {
        verb
        for place, verbs in make.ROLES[role].items()
        if fits(place, key)
        for verb in verbs
        if verb != "put"
    }
    puts = any(fits(place, key) for place in make.places(role, "put"))
    return puts or what in verbs if what != "delete" else "delete" in verbs


def test_each_role_may_do_what_it_does(make):
    url = f"memory://policies-{next(_numbers)}"
    root, done = as_role(url)
    for run in range(2):
        with root.write("d") as writer:
            for i in range(8):
                writer.add(f"{run}-{i}", {"b.bin": b"%d" % i, "x.npy": np.zeros(4, np.uint8)})
    root.add_group("d", "more", {"len.cls": lambda sample: len(sample["b.bin"])})
    root.exclude("d", ["0-1"], reason="x")
    exclude(root, "d", ["0-3"], reason="dark", by="ann")
    root.annotate("d", "labels", {"0-2": {"label": "cat"}}, author="ann")
    root.close()
    writer_did = done.done
    root, done = as_role(url)
    version = root.open("d")
    plan = loader.plan({"d": version.where("label is null")}, seed=1, global_batch=2)
    plan.save(root)
    (address,) = version.address(np.array([0]), ["b.bin"])
    shard = loader.Root(url).store
    data = bytearray(shard.get(address.fields["b.bin"].path).data)
    data[address.fields["b.bin"].offset] ^= 1
    shard.put(address.fields["b.bin"].path, bytes(data))
    with loader.Loader(plan, 0, 1, framework="numpy", epochs=1, corrupt_budget=1.0, workers=0) as batches:
        list(batches)
    root.close()
    trainer_did = done.done
    root, done = as_role(url)
    root.retire("d@1", reason="old")
    for _ in range(2):
        collect(root, Options(grace_s=0), apply=True)
    for role, did in (("writer", writer_did), ("trainer", trainer_did), ("collector", done.done)):
        assert did
        assert [(what, key) for what, key in sorted(did) if not is_allowed(make, role, what, key)] == []
    assert any(key.startswith("ledgers/") for _, key in trainer_did)
    assert any(key.startswith("exclusions/") for _, key in writer_did)
    assert any(key.startswith("data/") for what, key in done.done if what == "delete")
    assert not is_allowed(make, "writer", "put", "data/a/b/manifest-00.json")
    assert not is_allowed(make, "writer", "delete", "data/a/b/media-0.tar")
    assert not is_allowed(make, "trainer", "put", "data/a/b/media-0.tar")
    assert not is_allowed(make, "collector", "put", "log/000000000001.json")


def format_prefixes():
    text = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    block = text.split("## The root", 1)[1].split("\n`txn`", 1)[0]
    lines = [line[4:] for line in block.splitlines() if re.match(r" {4}[a-z]", line)]
    columns = [one for line in lines for one in re.split(r" {2,}", line) if " " not in one or "/<" in one]
    return {"penstock.json", *(found[0] for one in columns if (found := re.match(r"[a-z]+/", one)))}


def test_no_prefix_of_the_format_is_forgotten(make):
    names = format_prefixes()
    assert {
        "penstock.json",
        "log/",
        "data/",
        "tables/",
        "stages/",
        "migrations/",
        "leases/",
        "heartbeats/",
    } <= names
    told = {place for rights in make.ROLES.values() for place in rights}
    assert names <= told
    page = PAGE.read_text(encoding="utf-8")
    listed = "".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    assert all(f"`{name}`" in listed for name in names)


def test_page_says_what_the_policies_do(make):
    """A row of its table: prefixes, then create, put, delete: the roles that may."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    cells = [(row[0].split(", "), row[-3:]) for row in rows if len(row) == 4]
    said = {place.strip("`"): rights for places, rights in cells for place in places}
    assert len(said) == sum(len(places) for places, _ in cells)
    roles = [role for role in make.ROLES if role != "operator"]
    found = {
        place: [
            ", ".join(role for role in roles if verb in make.ROLES[role].get(place, ())) or "-"
            for verb in ("create", "put", "delete")
        ]
        for place in dict.fromkeys(place for rights in make.ROLES.values() for place in rights if place)
    }
    assert said == found


@pytest.mark.parametrize("store", ["s3", "gcs", "azure"])
@pytest.mark.parametrize(
    "role", ["reader", "trainer", "writer", "submitter", "registrar", "collector", "operator"]
)
def test_each_policy_is_made(make, store, role):
    run = python(SCRIPT, store, role, "--bucket", "b", "--prefix", "/roots/main/", check=True)
    text = json.dumps(json.loads(run.stdout))
    for place in make.ROLES[role]:
        if store != "gcs" or place != make.SHARDS:
            assert f"roots/main/{place.partition('*')[0]}" in text


def test_s3_takes_only_creates_where_nothing_is_replaced(make):
    """By the policy's own words: whatever puts an object is bound to keys that may be replaced, or to If-None-Match."""
    for role in ("trainer", "writer", "submitter", "registrar", "collector"):
        for statement in make.s3(role, "b", "r")["Statement"]:
            if "s3:PutObject" in statement["Action"] and "Condition" not in statement:
                keys = [one.removeprefix("arn:aws:s3:::b/r/") for one in statement["Resource"]]
                puts = make.places(role, "put")
                assert keys == [one if "*" in one else f"{one}*" for one in puts]
            elif "s3:PutObject" in statement["Action"]:
                assert statement["Condition"] == {"Null": {"s3:if-none-match": "false"}}
