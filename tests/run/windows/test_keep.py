"""Windows at the true rows of a stream: the same for every reader, on any ranks, over resume, growth and takedown."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.shards.bitmap import SelectTable, pack
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables import parquet
from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
from loader.dataset.versions import window_counts, window_tables
from loader.errors import Corrupt, EmptyView, FieldNotFound, FormatTooNew, InvalidPlan, InvalidRuntime
from loader.order.sources.window_view import WindowView, table_sha256
from penstock.upkeep.verify.root import check_stored
from tests.refusals import refusal

NUMBERS = itertools.count()
AT: dict[str, Any] = {"action.npy": loader.rows(-1, 2)}


def episode(number: int, keep: Any) -> dict[str, Any]:
    """An episode whose rows hold their own numbers."""
    n = len(keep)
    action = np.stack([np.full(n, number), np.arange(n)], 1).astype(np.float32)
    return {"action.npy": action, "action.ns.npy": np.arange(n) * 20_000_000, "keep.npy": np.asarray(keep)}


def write_keeps(root: loader.Root, keeps: list[Any]) -> loader.View:
    with root.write("arm") as writer:
        for number, keep in enumerate(keeps):
            writer.add(f"ep{number}", episode(number, keep))
    return root.open("arm@latest").select("action.npy")


def keep_windows(view: loader.View, **options: Any) -> Any:
    return loader.windows(view, **{"anchor": "action.npy", "at": AT, "keep": "keep.npy", **options})


def order(windows: Any) -> list[int]:
    """Numbers of the episodes, as they are stored."""
    keys = windows.episodes.keys(np.arange(len(windows.episodes)))
    return [int(key.removeprefix("ep")) for key in keys]


def some(n: int, seed: int, share: float = 0.6) -> np.ndarray:
    return np.random.default_rng(seed).random(n) < share


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://keep-{next(NUMBERS)}") as opened:
        yield opened


@settings(max_examples=30)
@given(
    keeps=st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=7).filter(
        lambda keeps: any(map(any, keeps))
    ),
    every=st.integers(1, 4),
    inside=st.booleans(),
)
def test_windows_stand_at_the_true_rows(keeps: list[list[bool]], every: int, inside: bool) -> None:
    rows = {
        n: range(1, len(keep) - 1, every) if inside else range(0, len(keep), every)
        for n, keep in enumerate(keeps)
    }
    with loader.Root(f"memory://keep-{next(NUMBERS)}") as root:
        windows = keep_windows(write_keeps(root, keeps), every=every, pad="inside" if inside else "mask")
        numbers, stored_order = np.arange(len(windows)), order(windows)
        expected = [(n, row) for n in stored_order for row in rows[n] if keeps[n][row]]
        assert windows.keys(numbers) == [f"ep{n}@{row}" for n, row in expected]
        assert windows.stored_ordinals(numbers).tolist() == [stored_order.index(n) for n, _ in expected]
        for key, number in zip(windows.keys(numbers), numbers.tolist(), strict=True):
            assert windows.key_windows(key) == [number]
        again = keep_windows(write_again(root), every=every, pad="inside" if inside else "mask")
        assert (again.identity, again.id) == (windows.identity, windows.id)
        if not expected:
            return
        plan = loader.plan({"arm": windows}, seed=3, global_batch=1)
        with loader.Loader(plan, framework="numpy", workers=0, epochs=1) as read:
            seen = Counter(
                (int(batch["action.npy"][0, 1, 0]), int(batch["action.npy"][0, 1, 1]), key)
                for batch in read
                for _, key in batch.ids
            )
    assert seen == Counter((n, row, f"ep{n}@{row}") for n, row in expected)


def write_again(root: loader.Root) -> loader.View:
    return root.open("arm@latest").select("action.npy")


def test_table_over_groups_of_episodes_equals_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps = [some(5 + 3 * n, n) for n in range(40)]
    counted = []
    for limits in ((64 * 2**20, 4096), (500, 3), (1, 1)):
        monkeypatch.setattr(window_counts, "KEEP_BYTES", limits[0])
        monkeypatch.setattr(window_counts, "KEEP_EPISODES", limits[1])
        with loader.Root(f"memory://keep-{next(NUMBERS)}") as root:
            windows = keep_windows(write_keeps(root, keeps))
            counted.append(windows.table_sha256)
            assert windows.keys(np.arange(len(windows))) == [
                f"ep{n}@{row}" for n in order(windows) for row in np.flatnonzero(keeps[n])
            ]
    assert len(set(counted)) == 1


def test_ranks_resume_and_a_saved_plan_give_the_same_digests(root: loader.Root) -> None:
    windows = keep_windows(write_keeps(root, [some(20 + n, n) for n in range(12)]))
    plan = loader.plan({"arm": windows}, seed=5, global_batch=10)

    def digests(plan: loader.Plan, world: int, first: int = 0) -> list[int]:
        sums = [0] * (30 - first)
        for rank in range(world):
            with loader.Loader(plan, rank, world, framework="numpy", workers=0, steps=30) as read:
                read.load_state_dict(plan.state(first))
                for batch in read:
                    sums[batch.step - first] = (sums[batch.step - first] + batch.digest) % 2**64
        return sums

    whole = digests(plan, 1)
    assert len(set(whole)) == 30
    assert digests(plan, 2) == digests(plan, 5) == whole
    assert digests(plan, 3, first=17) == whole[17:]
    plan.save(root)
    again = loader.open_plan(root, plan.hash)
    assert again.hash == plan.hash
    assert digests(again, 1) == whole
    everywhere = keep_windows(write_again(root), keep=None)
    assert everywhere.identity != windows.identity
    assert loader.plan({"arm": everywhere}, seed=5, global_batch=10).hash != plan.hash


def test_worker_processes_give_the_same_batches(root: loader.Root, tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as on_disk:
        plan = loader.plan(
            {"arm": keep_windows(write_keeps(on_disk, [some(20, n) for n in range(5)]))},
            seed=5,
            global_batch=4,
        )
        ids = []
        for workers in (0, 2):
            with loader.Loader(plan, framework="numpy", workers=workers, steps=6) as read:
                ids.append([(batch.digest, batch.ids) for batch in read])
    assert ids[0] == ids[1]


def test_episodes_are_quarantined_and_found(root: loader.Root) -> None:
    keeps = [some(20, n) for n in range(4)]
    plan = loader.plan({"arm": keep_windows(write_keeps(root, keeps))}, seed=5, global_batch=3)
    held = plan.quarantined({"arm": ["ep2"]}, 3)
    for step in range(15):
        left = [key for _, key in held.batch_ids(step)]
        assert step < 3 or not any(key.startswith("ep2@") for key in left)
        for key in {key for _, key in plan.batch_ids(step)}:
            assert step in [place.step for place in plan.steps_of("arm", key, before=15)]
            assert step in [place.step for place in plan.steps_of("arm", key.partition("@")[0], before=15)]
    dropped = int(np.flatnonzero(~keeps[1])[0])
    with refusal(InvalidRuntime, what="key", where="source 'arm'", given=f"ep1@{dropped}"):
        plan.steps_of("arm", f"ep1@{dropped}", before=15)
    for other in ("0" + str(int(np.flatnonzero(keeps[1])[0])), "9" * 5000, "\u0663", "-1", ""):
        with refusal(InvalidRuntime, what="key", where="source 'arm'", given=f"ep1@{other}"):
            plan.steps_of("arm", f"ep1@{other}", before=15)
    (explained,) = [one for one in loader.explain(plan, 0) if one.slot == 0]
    assert explained.address.key == plan.batch_ids(0)[0][1].partition("@")[0]


def write_growing_root(root: loader.Root) -> tuple[list[Any], loader.Plan]:
    keeps = [some(12 + n, n) for n in range(5)]
    return keeps, loader.plan({"arm": keep_windows(write_keeps(root, keeps))}, seed=5, global_batch=3)


def test_plan_grows_by_the_true_rows_of_new_episodes(root: loader.Root) -> None:
    keeps, plan = write_growing_root(root)
    with root.write("arm") as writer:
        for number in range(5, 8):
            keeps.append(some(9, number))
            writer.add(f"ep{number}", episode(number, keeps[number]))
    later = root.exclude("arm@latest", ["ep1"], reason="bad")
    grown = plan.grow({"arm": later}, 4)
    assert [grown.batch_ids(step) for step in range(4)] == [plan.batch_ids(step) for step in range(4)]
    ids = [key for step in range(4, 90) for _, key in grown.batch_ids(step)]
    whole = {f"ep{n}@{row}" for n, keep in enumerate(keeps) for row in np.flatnonzero(keep) if n != 1}
    assert set(ids) == whole
    grown.save(root)
    again = loader.open_plan(root, grown.hash)
    with (
        loader.Loader(again, framework="numpy", workers=0, steps=30) as one,
        loader.Loader(grown, framework="numpy", workers=0, steps=30) as other,
    ):
        assert [batch.digest for batch in one] == [batch.digest for batch in other]


@pytest.mark.parametrize("swap", [True, False])
def test_growth_over_a_rewritten_keep_is_refused(root: loader.Root, swap: bool) -> None:
    keeps, plan = write_growing_root(root)
    keeps.append(some(9, 5))
    with root.write("arm") as writer:
        writer.add("ep5", episode(5, keeps[5]))
    root.exclude("arm@latest", ["ep0"], reason="bad")
    other = {**dict(enumerate(keeps)), 3: keeps[3][::-1] if swap else ~keeps[3]}
    assert not np.array_equal(other[3], keeps[3])
    was = plan.sources["arm"].view
    assert isinstance(was, WindowView)
    for name, values in (("same", dict(enumerate(keeps))), ("other", other)):
        field = f"{name}.npy"
        later = root.add_group(
            "arm@latest",
            name,
            {field: lambda sample, values=values: values[int(sample["action.npy"][0, 0])].copy()},
        )
        view = keep_windows(later.select("action.npy"), keep=field)
        now = WindowView(view.episodes, was.layout, view.first, view.kept)  # as if it were "keep.npy"
        if name == "same":
            added = now.since(was).view
            assert isinstance(added, WindowView)
            assert added.keys(np.arange(len(added))) == [f"ep5@{row}" for row in np.flatnonzero(keeps[5])]
        else:
            with refusal(InvalidPlan, what="keep.npy", where="episode 'ep3'"):
                now.since(was)


@pytest.mark.parametrize("keep", [None, "keep.npy"])
def test_run_follows_two_publishes(root: loader.Root, keep: str | None) -> None:
    keeps = [some(12, n) for n in range(3)]
    windows = keep_windows(write_keeps(root, keeps), keep=keep)
    plan = loader.plan({"arm": windows}, seed=5, global_batch=4)

    def publish(number: int) -> None:
        keeps.append(some(10, number))
        with root.write("arm") as writer:
            writer.add(f"ep{number}", episode(number, keeps[number]))

    def ranks(run: str, until: int, state: Any = None) -> tuple[list[int], list[str], Any]:
        sums, ids, states = [0] * until, list[str](), []
        for rank in range(2):
            with loader.follow(
                root,
                plan,
                run=run,
                every=5,
                rank=rank,
                world_size=2,
                framework="numpy",
                workers=0,
                steps=until,
            ) as read:
                if state is not None:
                    read.load_state_dict(state)
                for batch in read:
                    if rank == 0 and state is None and batch.step in (2, 11):
                        publish(3 if batch.step == 2 else 4)
                    sums[batch.step] = (sums[batch.step] + batch.digest) % 2**64
                    ids += [key for _, key in batch.ids]
                states.append(read.state_dict())
        return sums, ids, states[0]

    sums, ids, _ = ranks("live", 60)
    whole = {
        f"ep{n}@{row}" for n, own in enumerate(keeps) for row in range(len(own)) if keep is None or own[row]
    }
    assert set(ids) == whole
    assert {key.partition("@")[0] for key in ids[:10]} <= {"ep0", "ep1", "ep2"}
    assert len(list(root.store.list("follows/live/"))) == 11
    followed = loader.open_plan(root, ranks("live", 60, plan.state(0))[2]["follow"]["plan"])
    assert sorted(followed.sources) == ["arm", "arm#1", "arm#2", "arm+1", "arm+2"]
    again, _, _ = ranks("live", 60, plan.state(0))
    assert again == sums


def test_growth_needs_the_same_keep(root: loader.Root) -> None:
    _, plan = write_growing_root(root)
    with root.write("arm") as writer:
        writer.add("ep5", episode(5, some(9, 5)))
    with refusal(InvalidPlan, what="windows", where="source 'arm'", given=["keep"]):
        plan.grow({"arm": keep_windows(write_again(root), keep=None)}, 2)


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        (np.ones(7, bool), {"what": "keep", "given": ["'ep1' (bool [7], and 10 rows)"]}),
        (np.ones(11, bool), {"what": "keep", "given": ["'ep1' (bool [11], and 10 rows)"]}),
        (np.ones((10, 1), bool), {"what": "keep", "given": ["'ep1' (bool [10, 1], and 10 rows)"]}),
        (np.ones(10, np.uint8), {"what": "keep", "given": ["'ep1' (uint8 [10], and 10 rows)"]}),
        (np.full(10, np.nan), {"what": "keep", "given": ["'ep1' (float64 [10], and 10 rows)"]}),
    ],
)
def test_keep_that_is_no_bool_for_each_row_is_refused(
    root: loader.Root, keep: Any, fault: dict[str, object]
) -> None:
    with root.write("arm") as writer:
        writer.add("ep0", episode(0, np.ones(10, bool)))
        writer.add("ep1", episode(1, np.ones(10, bool)) | {"keep.npy": keep})
    view = root.open("arm@1").select("action.npy")
    with refusal(InvalidPlan, **fault):
        keep_windows(view)
    assert not list(root.store.list("windows/"))
    assert len(keep_windows(view.where("key != 'ep1'"))) == 10


def test_keep_that_is_missing_is_refused(root: loader.Root) -> None:
    view = write_keeps(root, [some(9, 1)])
    for name in ("", 3):
        with refusal(InvalidPlan, what="keep", given=name, accepted="the name of a bool stream"):
            keep_windows(view, keep=name)
    with refusal(FieldNotFound, what="other.npy", where="arm@1"):
        keep_windows(view, keep="other.npy")
    with root.write("words") as writer:
        writer.add("ep0", episode(0, [True]) | {"keep.txt": "yes"})
    with refusal(InvalidPlan, what="keep", given="keep.txt", accepted="an array field of truth values"):
        keep_windows(root.open("words@1").select("action.npy"), keep="keep.txt")
    bare = {name: value for name, value in episode(1, some(9, 2)).items() if name != "keep.npy"}
    root.add_group("arm@1", "more", {"later.npy": lambda sample: some(9, 1)})
    with root.write("arm") as writer:
        writer.add("ep1", bare | {"keep.npy": some(9, 2)})
    with refusal(FieldNotFound, what="later.npy", where="episode 'ep1'"):
        keep_windows(write_again(root), keep="later.npy")


def test_epoch_without_true_rows_is_refused(root: loader.Root) -> None:
    windows = keep_windows(write_keeps(root, [np.zeros(5, bool)] * 3))
    assert len(windows) == 0
    with pytest.raises(EmptyView):
        loader.plan({"arm": windows}, seed=1, global_batch=2)


def test_table_is_stored_once_and_proved(tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as root:
        keeps = [some(30, n) for n in range(3)]
        windows = keep_windows(write_keeps(root, keeps))
        (path,) = tmp_path.glob("windows/*.parquet")
        before = path.stat().st_mtime_ns
        assert keep_windows(write_again(root)).id == windows.id
        assert path.stat().st_mtime_ns == before
        data = path.read_bytes()
        rows = pq.read_table(path)
        assert rows["first"].to_pylist() == [0, 30, 60, 90]
        assert (
            rows["first_kept"].to_pylist()
            == np.cumsum([0, *(keeps[n].sum() for n in order(windows))]).tolist()
        )
        bits = np.concatenate([keeps[n] for n in order(windows)])
        assert data[:16] == b"PAR1" + pack(bits)
        name = path.relative_to(tmp_path).as_posix()
        assert list(check_stored(root.store, name, root.state)) == []
        assert table_facts(parse_table(data, name))["content_sha256"] == windows.table_sha256  # for takedowns
        for at in (4, 15):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with refusal(Corrupt, what="page 0 of the bitmap", within=name):
                keep_windows(write_again(root)).keys(np.arange(3))
            (problem,) = check_stored(root.store, name, root.state)
            assert "damaged, edited or renamed" in problem.what
        facts = rows.schema.metadata
        for fact in (b"penstock.pages", b"penstock.rows_sha256", b"penstock.path"):
            edited = rows.replace_schema_metadata({**facts, fact: facts[fact][::-1]})
            pq.write_table(edited, path)
            with refusal(Corrupt, what="table of windows", within=name) as damaged:
                keep_windows(write_again(root))
            assert "delete it to rebuild it" in str(damaged.value)
        for cut in (0, 3, 40, len(data) - 1):
            path.write_bytes(data[:cut])
            with refusal(Corrupt, what="table of windows", within=name):
                keep_windows(write_again(root))
        path.write_bytes(data)
        assert keep_windows(write_again(root)).id == windows.id
        assert json.loads(json.dumps(windows.spec()))["layout"]["keep"] == "keep.npy"


@pytest.mark.parametrize(
    ("first", "first_kept", "n_true", "fault_in_use"),
    [
        ([0, 30, 60], [0, 20, 40], [40], None),
        ([0, 30, 60], [0, 20, 39], [39], "page 0 of the bitmap"),  # a page has another number of true rows
        ([0, 30, 60], [0, 10, 40], [40], ""),  # an episode has: each read would need the whole bitmap
        ([0, 30, 60], [0, 31, 40], [40], "content of the table"),
        ([0, 30, 60], [0, 50, 40], [40], "content of the table"),
        ([0, 90, 60], [0, 20, 40], [40], "content of the table"),
        (
            [0, 30, 2**26],
            [0, 20, 40],
            [40, *[0] * 31],
            "content of the table",
        ),  # 8 MiB of bits that the file lacks
    ],
)
def test_forged_table_is_refused(
    root: loader.Root, first: list[int], first_kept: list[int], n_true: list[int], fault_in_use: str | None
) -> None:
    view = write_keeps(root, [np.arange(30) % 3 > 0] * 2)
    keep_windows(view)
    (path,) = [info.key for info in root.store.list("windows/")]
    packed = np.frombuffer(root.store.get(path).data[4:12], np.uint8)
    pages = np.array([(crc32c(packed.data), n) for n in n_true], [("crc32c", "<u4"), ("n_true", "<u4")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_tables, "_all_page_facts", lambda packed: pages)
        rows = (np.array(numbers, np.int64) for numbers in (first, first_kept))
        data = window_tables.kept_windows_bytes(*rows, packed, {"path": path})
    root.store.delete_many([path])
    root.store.put_if_absent(path, data)
    if fault_in_use is None:
        window_tables.check_windows(data, path, path)
    else:
        with refusal(Corrupt, what="content of the table", where=path) as damaged:
            window_tables.check_windows(data, path, path)
        assert str(damaged.value).endswith("damaged, edited or renamed; delete it to rebuild it")
    if fault_in_use:
        with refusal(Corrupt, what=fault_in_use, within=path):
            keep_windows(write_again(root)).keys(np.arange(3))
    else:
        keep_windows(write_again(root)).keys(np.arange(3))


def test_table_of_a_later_release_is_named(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    view = write_keeps(root, [some(30, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "SCHEMA_VERSION", 2)
        keep_windows(view)
    with refusal(FormatTooNew, what="table schema", given=2):
        keep_windows(write_again(root))


def test_table_whose_numbers_wrap_is_refused(root: loader.Root) -> None:
    first = np.array([0, 2**63 - 1, -(2**63)], np.int64)
    facts = {"path": "windows/x.parquet", "content_sha256": table_sha256(first)}
    data = table_bytes(pa.table({"first": first}), "windows", facts=facts)
    with refusal(Corrupt, what="content of the table", where="windows/x.parquet"):
        window_tables.check_windows(data, "windows/x.parquet", "windows/x.parquet")


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 4095, 4096, 4097])
def test_members_after_a_number(n: int) -> None:
    members = some(n, n)
    table = SelectTable(pack(members), n)
    for start in {0, 1, 3, 8, n // 2, n - 1, n} & set(range(n + 1)):
        after = table.after(start)
        assert after.packed() == pack(members[start:])
        assert len(after) == members[start:].sum()


@pytest.mark.parametrize("keep", ["keep.npy", None])
@settings(max_examples=6)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    gone=st.lists(st.integers(0, 11), max_size=5),
    every=st.integers(1, 3),
    inside=st.booleans(),
    where=st.booleans(),
)
def test_later_tables_read_new_episodes_only_and_equal_whole_ones(
    keep: str | None, sizes: list[int], gone: list[int], every: int, inside: bool, where: bool
) -> None:
    options: dict[str, Any] = {"every": every, "pad": "inside" if inside else "mask", "keep": keep}
    n_read, n_before, read_fields = list[int](), 0, window_counts.read_fields

    def count_keeps(store: Any, addresses: Any, **named: Any) -> Any:
        n_read.append(sum("keep.npy" in address.fields for address in addresses))
        return read_fields(store, addresses, **named)

    def windows(root: loader.Root) -> Any:
        view = root.open("arm@latest").select("action.npy")
        return keep_windows(view.where("good") if where else view, **options)

    with loader.Root(f"memory://keep-{next(NUMBERS)}") as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_counts, "read_fields", count_keeps)
        patch.setattr(window_counts, "BITS_TOGETHER", 16)
        for n in sizes:
            with root.write("arm") as writer:
                for number in range(n_before, n_before + n):
                    fields = episode(number, some(7 + 3 * number, number))
                    writer.add(f"ep{number}", fields, {"good": number % 3 != 1})
            n_before += n
            if out := {f"ep{number}" for number in gone if number < n_before - n} - exclude_episodes(root):
                root.exclude("arm@latest", sorted(out), reason="bad")
            n_read.clear()
            later = windows(root)
            new = [k for k in range(n_before - n, n_before) if not where or k % 3 != 1]
            assert sum(n_read) == (len(new) if keep else 0)
            root.store.delete_many([info.key for info in root.store.list("windows/")])
            whole = windows(root)
            assert (later.identity, later.table_sha256) == (whole.identity, whole.table_sha256)
            assert later.first.tolist() == whole.first.tolist()
            if keep:
                n = int(whole.kept.first[-1])
                assert later.kept.members.bits(0, n).tolist() == whole.kept.members.bits(0, n).tolist()


def exclude_episodes(root: loader.Root) -> set[str]:
    """Keys of the episodes that the newest version lacks."""
    live = set(root.open("arm@latest").samples().collect()["key"])
    return {f"ep{number}" for number in range(16)} - live


def test_plan_grows_by_what_its_windows_know(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = write_growing_root(root)
    with root.write("arm") as writer:
        writer.add("ep5", episode(5, some(9, 5)))
    seen, read_fields = list[str](), window_counts.read_fields

    def record_keys(store: Any, addresses: Any, **named: Any) -> Any:
        seen.extend(address.key for address in addresses if "keep.npy" in address.fields)
        return read_fields(store, addresses, **named)

    monkeypatch.setattr(window_counts, "read_fields", record_keys)
    monkeypatch.setattr(window_counts, "earlier_versions", lambda version, prefix: [])
    grown = plan.grow({"arm": root.open("arm@latest")}, 2)
    assert seen == ["ep5"]
    rows = {f"ep5@{row}" for row in np.flatnonzero(some(9, 5))}
    assert rows <= {key for step in range(2, 40) for _, key in grown.batch_ids(step)}


def test_norm_is_of_the_true_rows(root: loader.Root) -> None:
    keeps = [some(15, n) for n in range(3)]
    windows = keep_windows(write_keeps(root, keeps), at={"action.npy": loader.rows(0, 1)})
    norm = loader.norm(windows, ["action.npy"])
    values = np.concatenate([np.flatnonzero(keep) for keep in keeps])
    assert norm["action.npy"].n == len(values)
    assert norm["action.npy"].mean[1] == values.mean()
