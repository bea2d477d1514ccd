"""Every kind of damage to a root, planted one at a time: verify names that, and nothing else."""

import json
import re
from collections import Counter

import numpy as np
import pytest

import loader
from loader.dataset.log.dataset_starts import dump_dataset_start
from loader.dataset.log.entries import canonical, entry_checksum, entry_key
from loader.dataset.log.log import Log
from loader.dataset.log.snapshots import dump_state, hint_key
from loader.errors import Corrupt, FormatTooNew
from penstock.upkeep.verify import root as verify_root_module
from penstock.upkeep.verify import version as module
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def root(tmp_path):
    """d@1 of three parts, d@2 with a group, d@3 without k1, d@1 retired; a tag; a plan, a view, two transactions."""
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=4) as writer:
        for i in range(12):
            writer.add(
                f"k{i:02d}",
                {"cls": i % 10, "x": b"%02d" % i * 50},
                metadata={"w": i, "f": i / 3, "s": "ab"[i % 2]},
            )
    root.add_group("d", "g", {"t.txt": lambda sample: f"{sample['cls']}"})
    root.exclude("d", ["k01"], reason="blurred")
    root.tag("d@3", "good")
    root.retire("d@1", reason="old")
    loader.plan({"d": root.open("d").where("w > 3").select("x")}, seed=1, global_batch=2).save(root)
    loader.write_part(root, root.begin("d"), [("other", {"cls": 1, "x": b""})])
    return root


def change(root, path, edit):
    root.store.put(path, edit(root.store.get(path).data))


def problems(root, full=False):
    return [(one.address, one.what) for one in verify_root(loader.Root(root.url), full=full).problems]


def only(root, address, what, full=False):
    """One problem, with this address and a text that this pattern is found in."""
    ((found, text),) = problems(root, full)
    assert found == address
    assert re.search(what, text), text


def rewrite(**fields):
    """The entry with other fields, canonical again, with the checksum of what it says now."""

    def edit(data):
        value = {**json.loads(data), **fields}
        return canonical({**value, "checksum": entry_checksum(value)})

    return edit


@pytest.mark.parametrize("full", [False, True])
def test_sound_root(root, full):
    report = verify_root(root, full=full)
    assert (report.problems, report.foreign, report.nothing_leased) == ([], [], [])
    assert (report.entries, report.versions, report.retired) == (9, 3, 1)
    assert report.shards == 6  # each once, whatever the number of versions that name it
    # Samples of three parts as their writers left them; shard, index and samples of the open transaction.
    assert report.unreferenced == 3 + 3
    assert report.objects == len(list(root.store.list("")))


@pytest.mark.parametrize("more", [1, 6])
def test_tables_that_versions_share_are_read_once(root, more):
    """Statistics and hashes of keys, which nothing is compared with: once, whatever the number of versions."""
    for i in range(more):
        root.exclude("d", [f"k{i + 2:02d}"], reason="x")
    read = Counter()
    store = root.store
    get = store.get
    store.get = lambda key: read.update([key]) or get(key)
    assert verify_root(root).problems == []
    manifest = root.open("d").manifest
    for kind in ("stats", "key_hashes"):
        assert [read[file["path"]] for file in manifest[kind]] == [1] * len(manifest[kind]), kind
    (keys, *_) = (file for file in manifest["samples"] if file["group"] == "keys")
    assert read[keys["path"]] == 1 + 2 + more  # to check it, and to compare it with the parts of each version


# the log


def test_entry_edited_within_the_rules(root):
    change(root, entry_key(3), rewrite(at_us=7))
    only(root, entry_key(3), "not what entry 4 was written after: it was edited")


def test_entry_that_was_damaged(root):
    change(root, entry_key(3), lambda data: data.replace(b'"kind"', b'"kinf"'))
    only(root, entry_key(3), "has kind None")
    root.store.put(entry_key(3), root.store.get(entry_key(3)).data.replace(b'"kinf"', b'"kind"'))
    change(root, entry_key(3), lambda data: canonical({**json.loads(data), "at_us": 7}))
    only(root, entry_key(3), "differs from its checksum")


def test_entry_that_is_no_json(root):
    change(root, entry_key(4), lambda data: data[:-3])
    only(root, entry_key(4), "is not JSON")


def test_entry_that_was_copied_over_another(root):
    root.store.put(entry_key(4), root.store.get(entry_key(3)).data)
    only(root, entry_key(4), "it was copied or renamed")


@pytest.mark.parametrize("gone", [[1], [3], [7], [8], [6, 7, 8], [3, 4, 5, 6, 7]])
def test_missing_entries_wherever_a_read_ends(root, cli, gone):
    """A read asks for entry 1, for 2 and 3, then for 4 to 7: a gap up to such a border looks like the log's end."""
    root.store.delete_many(map(entry_key, gone))
    which = (
        f"{entry_key(gone[0])} is" if len(gone) == 1 else f"{entry_key(gone[0])} to {entry_key(gone[-1])} are"
    )
    only(root, entry_key(gone[0]), f"log entr(y|ies) {which} missing while a later one exists")
    run = cli("verify", root=root.url)
    assert run.code == 1
    assert run.out.splitlines()[-1].endswith(": 1 problems")
    with refusal(Corrupt, what="entry", within=entry_key(gone[0]), given="missing"):
        verify(loader.Root(root.url), "d@2")


def test_each_gap_is_named(root):
    root.store.delete_many(map(entry_key, (3, 6, 8)))
    assert [address for address, _ in problems(root)] == [entry_key(n) for n in (3, 6, 8)]


def test_entries_that_are_written_meanwhile_are_not_missing(root, monkeypatch):
    """A listing that shows the second of two new entries and not the first."""
    listing, late = root.store.list, entry_key(root.state.n + 1)
    for name in ("a", "b"):
        root.begin("d", txn=name)
    shown = lambda prefix="", start_after=None: (i for i in listing(prefix, start_after) if i.key != late)  # noqa: E731
    monkeypatch.setattr(root.store, "list", shown)
    report = verify_root(root)
    assert (report.problems, report.entries) == ([], 11)
    root.begin("d", txn="c")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"number": 7}, "breaks a rule of the log: number 7"),
        ({"parent": None}, "breaks a rule of the log: parent None"),
        ({"id": "v-" + "0" * 64}, "does not belong to a manifest with sha256"),
        ({"txn": "older"}, "it commits d@4 with txn 'older', the manifest has"),
    ],
)
def test_last_entry_edited_is_told_by_the_manifest_that_it_commits(root, fields, what):
    root.begin("d", txn="older")
    with root.write("d") as writer:
        writer.add("new", {"cls": 1, "x": b""})
    last = root.state.n
    change(root, entry_key(last), rewrite(**fields))
    only(root, entry_key(last), what)


def test_commit_of_other_takedowns_than_its_manifest(root):
    with root.write("d") as writer:
        writer.add("new", {"cls": 1, "x": b""})
    record, n = root.record("d@4"), root.state.n
    body = json.loads(root.store.get(record.manifest).data)
    data = canonical({**body, "denies": 5})
    import hashlib

    sha256 = hashlib.sha256(data).hexdigest()
    root.store.put(record.manifest, data)
    change(root, entry_key(n), rewrite(sha256=sha256, id=f"v-{sha256}"))
    only(root, entry_key(n), "with denies 0, the manifest has 5")


def test_hints(root):
    for i in range(256):
        root.begin("d", txn=f"t{i}")
    assert problems(root) == []
    good = root.store.get(hint_key(256)).data
    root.store.put(hint_key(256), good.replace(b'"blurred"', b'"blurrrd"').replace(b'"old"', b'"odd"'))
    only(root, hint_key(256), "its checksum does not hold; delete it")
    other = loader.Root(root.url + "-other")
    for i in range(256):
        other.begin("d", txn=f"t{i}")
    root.store.put(hint_key(256), dump_state(Log(other.store).verify()))
    only(root, hint_key(256), "it is not what the entries up to 256 come to")
    root.store.put(hint_key(256), good)
    root.store.put(hint_key(512), good)
    only(root, hint_key(512), f"there is no log entry 512 .* {entry_key(266)} and later ones are missing")


def test_missing_entry_before_a_hint(root):
    """The hint is sound, and not what is to be deleted."""
    for i in range(260):
        root.begin("d", txn=f"t{i}")
    root.store.delete_many([entry_key(255)])
    only(root, entry_key(255), "is missing while a later one exists")


def test_hint_that_is_collected_meanwhile(root, monkeypatch):
    for i in range(256):
        root.begin("d", txn=f"t{i}")
    listing = root.store.list

    def then_collected(prefix="", start_after=None):
        found = list(listing(prefix, start_after))
        root.store.delete_many([hint_key(256)])
        return iter(found)

    monkeypatch.setattr(root.store, "list", then_collected)
    assert verify_root(root).problems == []


# manifests and tables


def test_manifest_edited_by_hand(root):
    path = root.record("d@2").manifest
    change(root, path, rewrite(n_rows=13))
    only(root, f"d@2 {path}", "in its commit .*: the manifest was edited or damaged")


def test_manifest_that_is_gone(root):
    path = root.record("d@2").manifest
    root.store.delete_many([path])
    only(root, f"d@2 {path}", path)
    root.retire("d@2", reason="gone")
    assert problems(root) == []  # of a version that is retired a collector may have taken it


@pytest.mark.parametrize("kind", ["shards", "samples", "stats", "key_hashes"])
@pytest.mark.parametrize("how", ["damaged", "gone", "shorter"])
def test_a_table(root, kind, how):
    path = root.open("d@2").manifest[kind][-1]["path"]
    if how == "gone":
        root.store.delete_many([path])
    else:
        change(root, path, lambda data: data[:-9] if how == "shorter" else data[:60] + b"?" + data[61:])
    found = problems(root)
    # Every version that names the table; the group's own shards table is of d@2 and d@3.
    assert {address for address, _ in found} == {f"d@2 {path}", f"d@3 {path}"}


def flip_bit(data):
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["samples", "stats", "key_hashes", "exclusions"])
def test_shards_are_looked_at_beside_a_bad_table(root, kind, full):
    """Of every shard, also those of the first version that shares the table."""
    paths = [file["path"] for file in root.open("d@3").manifest[kind]]
    for path in paths:
        change(root, path, flip_bit)
    gone = [row["path"] for row in root.open("d@2").parts.shard_rows().to_pylist()]
    root.store.delete_many(gone)
    found = problems(root, full)
    tables = {address.split(" ")[1] for address, _ in found if address.endswith(".parquet")}
    assert tables == set(paths)
    shards = [address for address, _ in found if not address.endswith(".parquet")]
    assert sorted(re.search(r"\((.*)\)", address)[1] for address in shards) == sorted(gone)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["samples", "stats", "key_hashes", "exclusions", "shards"])
def test_bad_table_says_nothing_of_sound_shards(root, kind, full):
    """Nor of the keys in them, of which it may be the only list."""
    for file in root.open("d@3").manifest[kind]:
        change(root, file["path"], flip_bit)
    report = verify_root(loader.Root(root.url), full=full)
    assert all(one.address.endswith(".parquet") for one in report.problems)
    assert report.shards == (0 if kind == "shards" else 6)


def test_shards_of_the_other_shards_tables_are_read(root, cli):
    """Of two tables, the shards of the bad one cannot be, and are counted."""
    media, group = (file["path"] for file in root.open("d@2").manifest["shards"])
    lost = root.open("d@2").parts.shard("media", 1)
    root.store.delete_many([lost["path"]])
    change(root, group, flip_bit)
    found = dict(problems(root))
    assert found.keys() == {
        f"d@2 {group}",
        f"d@3 {group}",
        f"d@2/{lost['part']} media ({lost['path']})",
    }
    assert found[f"d@2 {group}"].endswith("the 3 shards that it names were not checked")
    report = verify(loader.Root(root.url), "d@2")
    assert (report.shards, report.of_shards) == (3, 6)
    assert "d@2: 3 of 6 shards" in cli("verify", "d@2", root=root.url).out
    change(root, media, flip_bit)
    assert (verify(loader.Root(root.url), "d@2").shards, len(problems(root))) == (0, 4)


def test_comparisons_that_need_no_bad_table_are_made(root):
    """A damaged table of statistics beside a manifest that says other than the tables of parts."""
    name = forge(root, lambda body: body.update(n_parts=9))
    path = root.open(name).manifest["stats"][0]["path"]
    change(root, path, flip_bit)
    assert {address for address, _ in problems(root, full=True)} == {
        *(f"d@{n} {path}" for n in (2, 3, 4)),
        "d@4 manifest n_parts",
    }


def forge(root, edit):
    """A version whose manifest was made wrong, consistently: only its tables know. Returns its name."""
    import hashlib

    version, record = root.open("d"), root.record("d")
    txn = root.begin("d")
    body = {**version.manifest, "parent": version.id, "txn": txn}
    edit(body)
    data = canonical(body)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"data/{txn}/x/manifest.json"
    root.store.put(path, data)
    from loader.dataset.log.rules import CommitBody

    entry = CommitBody(id=f"v-{sha256}", manifest=path, sha256=sha256, parent=record.id, denies=0)
    root.log.commit(txn, lambda state: entry)
    return "d@4"


@pytest.mark.parametrize(
    ("edit", "address", "what"),
    [
        (lambda body: body.update(n_parts=9), "d@4 manifest n_parts", "it is 9, the tables have 3"),
        (lambda body: body.update(n_rows=9), "d@4 manifest n_rows", "it is 9, the tables have 12"),
        (
            lambda body: body["groups"]["g"].update(n_rows=8),
            "d@4 manifest group 'g' n_rows",
            "it is 8, the shards tables have 12",
        ),
        (
            lambda body: body["groups"].update(h=body["groups"]["g"]),
            "d@4 manifest group 'h' n_parts",
            "it is 3, the shards tables have 0",
        ),
        (
            lambda body: body.update(samples=body["samples"][1:]),
            "d@4 samples-keys",
            "0 rows, the parts have 12",
        ),
        (
            lambda body: body.update(n_live=12),
            "d@4",
            "its tables hold 11 live samples, its manifest counts 12",
        ),
        (
            lambda body: body["columns"]["w"].update(type="string"),
            "d@4 .*samples-metadata-0.parquet column 'w'",
            "it is int64, the manifest states string",
        ),
    ],
)
def test_counts_coverage_and_ordinals(root, edit, address, what):
    """A manifest that says other than its tables."""
    forge(root, edit)
    found = problems(root)
    assert any(re.fullmatch(address, where) and what in text for where, text in found), found
    assert {where.split("@")[1][0] for where, _ in found} == {"4"}


def forge_rows(root, group, rows):
    """The newest version with these rows of a group's first samples table in its place."""
    from loader.dataset.tables.parquet import TableFile, get_table, put_table

    def edit(body):
        entry = next(one for one in body["samples"] if one["group"] == group)
        table = get_table(root.store, TableFile.from_json(entry)).take(rows)
        file = put_table(root.store, f"data/forged/x/samples-{group}-0.parquet", table, f"samples-{group}")
        body["samples"] = [{**one, **file.to_json()} if one is entry else one for one in body["samples"]]

    forge(root, edit)


def test_samples_out_of_the_order_of_parts(root):
    forge_rows(root, "keys", [1, 0, *range(2, 12)])
    ((address, what),) = problems(root)
    assert address == "d@4 data/forged/x/samples-keys-0.parquet row 0"
    assert "out of the order of parts" in what


def test_two_rows_of_an_annotation_for_one_sample(root):
    """As an earlier release wrote them of a column that was called `position`."""
    root.annotate("d", "labels", {f"k{i:02d}": {"s": "c"} for i in range(4, 12)}, author="ann")
    assert problems(root, full=True) == []

    forge_rows(root, "labels", [0, 1, 2, 3, 1, 2, 1])
    ((address, what),) = problems(root)
    assert address == "d@5 data/forged/x/samples-labels-0.parquet row 1"
    assert "3 rows are of its sample, and 2 of 4 samples have several" in what


def test_statistics_and_hashes_are_computed_again(root):
    """Of another run: right by their SHA-256, wrong by the samples. Only --full looks."""
    from loader.dataset.names import hashes_of
    from loader.dataset.shards.key_hashes import put_hashes
    from loader.dataset.tables.parquet import TableFile, get_table, put_table

    def edit(body):
        rows = get_table(root.store, TableFile.from_json(body["stats"][0])).to_pylist()
        for row in rows:
            row["sum"] = row["sum"] and row["sum"] + 1e-4
        from loader.dataset.tables.stats import STATS_SCHEMA, pa

        file = put_table(
            root.store, "data/forged/x/stats.parquet", pa.Table.from_pylist(rows, STATS_SCHEMA), "stats"
        )
        body["stats"] = [file.to_json()]
        body["key_hashes"] = [
            put_hashes(root.store, "data/forged/x", hashes_of([f"z{i}" for i in range(12)]))
        ]

    forge(root, edit)
    assert problems(root) == []
    found = problems(root, full=True)
    assert [address.split(" (")[0] for address, _ in found] == [
        "d@4 statistics of 'f'",
        "d@4 statistics of 'w'",
        "d@4 key_hashes",
    ]


# shards


def shard(root, part, group="media"):
    return root.open("d").parts.shard(group, part)


def test_shard_cut_short(root):
    row = shard(root, 1)
    change(root, row["path"], lambda data: data[:-512])
    address = f"d@2/{row['part']} media ({row['path']})"
    only(root, address, f"the shard has {row['nbytes'] - 512} bytes, the manifest states {row['nbytes']}")


def test_shard_that_is_gone(root):
    row = shard(root, 2, "g")
    root.store.delete_many([row["path"]])
    only(root, f"d@2/{row['part']} g ({row['path']})", row["path"])


def test_two_shards_exchanged(root):
    """They are as long as each other: the last sample's header tells."""
    rows = [shard(root, at) for at in (0, 1)]
    assert rows[0]["nbytes"] == rows[1]["nbytes"]
    first, second = (root.store.get(row["path"]).data for row in rows)
    root.store.put(rows[0]["path"], second)
    root.store.put(rows[1]["path"], first)
    for full in (False, True):
        found = problems(root, full)
        assert all("d@2/" in address for address, _ in found)
        for row in rows:
            mine = [(address, what) for address, what in found if row["part"] in address]
            assert "the tar header before it is not this member's" in mine[0][1]
            assert "sample 'k" in mine[0][0]


def test_index_of_another_shard(root):
    rows = [shard(root, at) for at in (0, 1)]
    root.store.put(rows[0]["index_path"], root.store.get(rows[1]["index_path"]).data)
    ((address, what),) = problems(root)
    assert address == f"d@2/{rows[0]['part']} media ({rows[0]['path']})"
    assert rows[0]["index_path"] in what


def test_bytes_behind_an_index(root):
    row = shard(root, 1)
    change(root, row["index_path"], lambda data: data + b"x")
    assert problems(root) == []
    ((address, what),) = problems(root, full=True)
    assert row["path"] in address
    assert what == f"its index has {row['index_nbytes'] + 1} bytes, the manifest states {row['index_nbytes']}"


def test_flipped_byte_is_found_by_full(root):
    row = shard(root, 1)
    change(root, row["path"], lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:])
    assert problems(root) == []
    found = problems(root, full=True)
    assert {address.split(" ")[0] for address, _ in found} == {f"d@2/{row['part']}"}
    assert "its SHA-256 is" in found[-1][1]


def test_sample_of_many_shards(root, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_SHARDS", 3)
    report = verify(root, "d")
    assert (report.problems, report.shards, report.of_shards) == ([], 3, 6)
    assert verify(root, "d", full=True).shards == 6


# what changes while it is verified


@pytest.mark.parametrize("collected", [False, True])
def test_version_that_is_retired_meanwhile(root, monkeypatch, collected):
    """While d is looked at somebody retires e@1, of which verify has read that it is not; what was found stays."""
    for key in "ab":
        with root.write("e") as writer:
            writer.add(key, {"cls": 1})
    row, record = shard(root, 1), root.record("e@1")
    root.store.delete_many([row["path"]])
    check = verify_root_module.check_version

    def retire_then_check(version, **how):
        if version.name == "d@2":
            loader.Root(root.url).retire("e@1", reason="policy")
            root.store.delete_many([record.manifest] if collected else [])
        return check(version, **how)

    monkeypatch.setattr(verify_root_module, "check_version", retire_then_check)
    report = verify_root(loader.Root(root.url))
    assert [one.address for one in report.problems] == [f"d@2/{row['part']} media ({row['path']})"]
    assert (report.versions, report.retired) == (5, 2)


def test_what_is_collected_meanwhile(root, monkeypatch, cli):
    """Between the listing and the read: a card, a plan."""
    assert cli("card", "d@3", "--save", root=root.url).code == 0
    gone = [info.key for folder in ("cards/", "plans/") for info in root.store.list(folder)]
    check = verify_root_module.check_log
    monkeypatch.setattr(
        verify_root_module, "check_log", lambda *given: root.store.delete_many(gone) or check(*given)
    )
    assert verify_root(root).problems == []


def test_what_is_listed_and_cannot_be_read(root, monkeypatch):
    info, _ = root.store.list("plans/")  # the plan, its start notes
    get = root.store.get
    monkeypatch.setattr(root.store, "get", lambda key: get("plans/none" if key == info.key else key))
    ((address, what),) = ((one.address, one.what) for one in verify_root(root).problems)
    assert (address, "plans/none" in what) == (info.key, True)


# the rest of a root


def test_plan_edited_by_hand(root):
    info, _ = root.store.list("plans/")  # the plan, its start notes
    change(root, info.key, lambda data: data.replace(b'"seed":1', b'"seed":2'))
    only(root, info.key, "it was edited or renamed")


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda data: data.replace(b"/manifest-", b"0/manifest-"), r"it states data/.*, the log data/"),
        (lambda data: data.replace(b"/manifest-", b"/manifest-0"), "is not a path of the manifest of"),
        (lambda data: data[:-1], "it cannot be read: DamagedJson"),
    ],
)
def test_start_notes_that_were_edited(root, edit, problem):
    _, info = root.store.list("plans/")
    change(root, info.key, edit)
    only(root, info.key, problem)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda data: data.replace(b"/manifest-", b"0/manifest-"), r"it states data/.*, the log data/"),
        (lambda data: data.replace(b"/manifest-", b"/manifest-0"), "is not a path of the manifest of"),
        (lambda data: data[:-1], "it cannot be read: DamagedJson"),
    ],
)
def test_start_of_a_dataset_that_was_edited(root, edit, problem):
    root.store.put("starts/d.json", dump_dataset_start(root.state, "d"))
    assert not verify_root(root).problems
    change(root, "starts/d.json", edit)
    only(root, "starts/d.json", problem)


def test_view_with_a_flipped_bit(root):
    from loader.dataset.tables.parquet import parse_table, table_bytes

    (info,) = root.store.list("views/")

    def edit(data):
        table = parse_table(data, "x")
        return table_bytes(table.set_column(1, "bits", [[b"\xff\xff"]]), "view")

    change(root, info.key, edit)
    only(root, info.key, "the bits from ordinal 0 on are damaged")


def test_two_views_exchanged(root):
    view = root.open("d").where("w > 7")
    len(view)
    keys = [info.key for info in root.store.list("views/")]
    first, second = (root.store.get(key).data for key in keys)
    root.store.put(keys[0], second)
    root.store.put(keys[1], first)
    found = dict(problems(root, full=True))
    assert sorted(found) == sorted(keys)
    for key, other in zip(keys, reversed(keys), strict=True):
        assert f"{key} was written as {other}" in found[key]


def test_table_of_shingles_that_was_edited(root):
    from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
    from penstock.search.overlap.protected_texts import protected_texts

    with root.write("exam") as writer:
        writer.add("q", {"txt": "a question of nine words, some of them repeated"})
    protected_texts(root.open("exam"))
    (info,) = root.store.list("protected/")
    assert problems(root) == []

    def edit(data):
        table = parse_table(data, "x")
        facts = {name: value for name, value in table_facts(table).items() if name not in ("table", "schema")}
        return table_bytes(table.slice(1), "protected", facts=facts)

    change(root, info.key, edit)
    only(root, info.key, "its content differs from its checksum; delete it to rebuild it")


def write_packs(root):
    """Two of one dataset, each with checksums of its pieces. Their keys."""
    txn = root.begin("t")
    samples = [(f"k{i}", {"tokens.npy": np.arange(9 + i, dtype=np.int32)}) for i in range(6)]
    root.publish("t", [loader.write_part(root, txn, samples)])
    view = root.open("t").select("tokens.npy")
    for length in (8, 12):
        view.packed(loader.pack("tokens.npy", length=length, checksums=True))
    return sorted(info.key for info in root.store.list("packs/"))


@pytest.mark.parametrize("ending", [".checks.parquet", ".parquet"])
def test_two_packs_exchanged(root, ending):
    keys = [key for key in write_packs(root) if key.partition(".")[2] == ending[1:]]
    assert problems(root) == []
    first, second = (root.store.get(key).data for key in keys)
    root.store.put(keys[0], second)
    root.store.put(keys[1], first)
    found = dict(problems(root))
    assert sorted(found) == keys
    assert all("was written as packs/" in what for what in found.values())


def test_takedowns_record_that_was_edited(root):
    from loader.dataset.log.denies import Target
    from penstock.upkeep.takedown.takedown_run import run_takedown

    n = root.log.deny([Target(kind="sample", value="k02", dataset="d")], "ticket 1", "desk").n
    run_takedown(root, n, apply=True)
    assert problems(root) == []
    keys = [info.key for info in root.store.list("takedowns/")]
    sound = {key: root.store.get(key).data for key in keys}
    for key in keys:
        change(root, key, rewrite(places=[]))
        only(root, key, "its content has sha256 .*it was edited or renamed; restore it from a mirror")
        root.store.put(key, sound[key])


def test_report_that_was_edited(root):
    plan = loader.plan({"d": root.open("d").select("x")}, seed=1, global_batch=2)
    told = {"loss": 0.1, "\u00fc": float("nan")}
    (one,) = loader.report(root, plan, run="r1", steps=(0, 9), metrics=told, strict=True)
    assert problems(root) == []
    sound = root.store.get(one.key).data
    for fields in ({"last_step": 8}, {"run": "r2"}, {"dataset": "e"}):
        change(root, one.key, lambda data, fields=fields: json.dumps({**json.loads(data), **fields}).encode())
        only(
            root,
            one.key,
            "its content belongs to reports/training/[de]/runs/r[12]/.*: it was edited or renamed",
        )
        root.store.put(one.key, sound)
    for data in (b"1", b"null", b"[]"):
        change(root, one.key, lambda _, data=data: data)
        only(root, one.key, "it is not a JSON object: it was edited")
        root.store.put(one.key, sound)
    change(root, one.key, lambda data: json.dumps({**json.loads(data), "mood": "fine"}).encode())
    only(root, one.key, "it has other fields than a report .*'mood'.*: it was edited")


def test_gates_page_that_was_edited(root):
    from assets.pages.gate_page import save

    path = save(root.store, "d", "b1", "<p>all is well</p>")
    assert problems(root) == []
    change(root, path, lambda data: data.replace(b"well", b"lost"))
    only(root, path, "its content has sha256 .*: it was edited or renamed")


def test_mirror_in_the_midst_of_its_migration(root):
    """What a run that was killed notes for the next is penstock's own."""
    from penstock.upkeep.copying.items import Copied
    from penstock.upkeep.copying.journal import Journal

    with Journal(root.store) as journal:
        journal.begin()
        journal.add(Copied(path="data/a/b.tar", nbytes=1, digest="sha256:" + "0" * 64))
        journal.flush()
    assert [info.key for info in root.store.list("migrations/")]
    report = verify_root(root)
    assert (report.problems, report.foreign) == ([], [])


def test_packs(root):
    from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts

    txn = root.begin("t")
    samples = [(f"k{i}", {"tokens.npy": np.arange(9 + i, dtype=np.int32)}) for i in range(6)]
    root.publish("t", [loader.write_part(root, txn, samples)])
    loader.plan(
        {"t": root.open("t").select("tokens.npy")},
        seed=1,
        global_batch=1,
        pack=loader.pack("tokens.npy", length=16),
    )
    (info,) = root.store.list("packs/")
    assert problems(root) == []

    def edit(data):
        table = parse_table(data, "x")
        length = table["length"].to_pylist()
        facts = {k: v for k, v in table_facts(table).items() if k not in ("table", "schema")}
        moved = [length[0] - 1, *length[1:]]
        return table_bytes(
            table.set_column(table.column_names.index("length"), "length", [moved]), "pack", facts=facts
        )

    change(root, info.key, edit)
    only(root, info.key, "the sha256 of its rows is")


def test_list_that_was_edited(root):
    from loader.dataset.tables.parquet import parse_table, table_bytes

    loader.listed(root.open("d"), [1, 0])
    (info,) = root.store.list("lists/")
    assert problems(root) == []
    change(root, info.key, lambda data: table_bytes(parse_table(data, "x").slice(1), "list"))
    only(root, info.key, "the sha256 of its ordinals is")


def test_card_of_another_version(root, cli):
    record = root.record("d@3")
    assert cli("card", "d@3", "--save", root=root.url).code == 0
    assert verify_root(root).problems == []
    key = f"cards/d/000003-{record.id}/card.json"
    card = json.loads(root.store.get(key).data)
    another = card | {"version": root.record("d@2").id}
    change(root, key, lambda data: json.dumps(another).encode())
    only(root, key, "it describes v-")
    root.store.delete_many([info.key for info in root.store.list("cards/")])
    key = f"cards/d/000004-{record.id}/card.json"
    root.store.put(key, json.dumps(card).encode())
    only(root, key, "the log has no version d@4 of that id")


def test_what_is_not_ours_is_named_and_left_alone(root):
    root.store.put("gates/d/a-page.html", b"ours")
    strange = ["notes.txt", "log/readme", "log/state-7.json", "mine/data.bin"]
    for key in strange:
        root.store.put(key, b"theirs")
    root.store.put("leases/x-1.json", canonical({"beat": 1, "host": "", "versions": ["v-" + "0" * 64]}))
    report = verify_root(root)
    assert (report.problems, sorted(report.foreign)) == ([], sorted(strange))
    assert report.nothing_leased == ["leases/x-1.json"]
    assert [root.store.get(key).data for key in strange] == [b"theirs"] * 4


def test_root_of_a_newer_format_is_refused(root, cli):
    change(root, "penstock.json", rewrite(format=2))
    with refusal(FormatTooNew, what="format", where=f"{root.url}/penstock.json", given=2, accepted=1):
        verify_root(loader.Root(root.url))
    run = cli("verify", root=root.url)
    assert run.code != 0
    assert "FormatTooNew" in run.err


def test_entry_of_a_newer_format_is_refused(root):
    change(root, entry_key(9), rewrite(format=2))
    with refusal(FormatTooNew, what="format", where=f"log entry {entry_key(9)}", given=2):
        verify_root(root)


def test_command(root, cli):
    run = cli("verify", root=root.url)
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines()[-1].endswith("0 of them foreign: nothing wrong")
    row = shard(root, 1)
    change(root, row["path"], lambda data: data[:-512])
    root.store.put("notes.txt", b"")
    run = cli("verify", root=root.url)
    assert run.code == 1
    assert run.out.splitlines()[0].startswith(f"d@2/{row['part']} media ({row['path']}): the shard has")
    assert "notes.txt: not written by penstock; ignored" in run.out
    body = cli("verify", "--json", root=root.url).json
    assert (len(body["problems"]), body["foreign"], body["versions"]) == (1, ["notes.txt"], 3)
