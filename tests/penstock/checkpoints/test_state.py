"""What one process saves and loads: every kind of value, what is refused, damage, and saves beside the training."""

import copy
import io
import logging
import queue
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp

import loader
from loader.errors import (
    CheckpointMismatch,
    Conflict,
    Corrupt,
    CorruptCheckpoint,
    InvalidField,
    InvalidRuntime,
    PlanMismatch,
    StoreError,
)
from loader.storage import ObjectInfo, open_store
from loader.storage.requests import RetryBudget, Traffic, count_requests
from loader.storage.threads import DaemonPool
from penstock.checkpoints import Checkpoints, TrainingState, marker
from penstock.checkpoints.dtypes import DTYPES
from penstock.checkpoints.writer import CheckpointWriter
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

ALONE = "ignore:torch.distributed is disabled"


def kinds():
    """One of everything that a checkpoint holds."""
    draw = torch.Generator().manual_seed(3)
    data = torch.randint(0, 256, (24 * 8,), dtype=torch.uint8, generator=draw)
    typed = {
        name: (data.view(dtype) if dtype != torch.bool else data > 100).clone()
        for name, dtype in DTYPES.items()
    }
    shapes = {
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "strided": torch.arange(60.0).reshape(5, 12).t()[::2],
        "expanded": torch.ones(1, 4).expand(3, 4),
        "conjugate": torch.view_as_complex(torch.arange(6.0).view(3, 2)).conj(),
        "long": torch.arange(40_000, dtype=torch.int32).reshape(1, 2, 20_000),
    }
    values = {"lr": 0.1, "name": "größer", "none": None, "flag": True, "betas": (0.9, 0.95), "big": 2**70}
    return {"typed": typed, "shapes": shapes, "values": values, "list": [1, {"deep": torch.arange(3)}, [2.5]]}


def blank(value):
    """The same tree with other contents."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {name: blank(one) for name, one in value.items()}
    return [blank(one) for one in value] if isinstance(value, list) else 0


def same(a, b):
    if isinstance(a, torch.Tensor):
        bits = [one.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for one in (a, b)]
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*bits)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def test_every_type_shape_and_value_comes_back(tmp_path):
    with Checkpoints(tmp_path / "root", "run", part_bytes=10_000) as checkpoints:
        assert checkpoints.load(blank(kinds())) is None
        checkpoints.save(1, kinds())
        found = blank(kinds())
        made = checkpoints.load(found)
    assert (made.step, made.plan, made.world_size) == (1, None, 1)
    assert len(made.parts) > 16  # the longest array is in several
    assert same(found, kinds())


@pytest.mark.filterwarnings(ALONE, "ignore:torch.distributed is unavailable")
def test_torchs_own_save_async_save_and_load_take_the_writer_and_the_reader(tmp_path):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    dcp.save(kinds(), storage_writer=checkpoints.writer(1))
    staged = kinds()
    del staged["shapes"]["conjugate"]  # torch's own copy forgets that it is one (docs/limits.md)
    dcp.async_save(staged, storage_writer=copy.deepcopy(checkpoints.writer(2))).result()
    for step, kept in ((1, kinds()), (2, staged)):
        found = blank(kept)
        dcp.load(found, storage_reader=checkpoints.reader(step))
        assert same(found, kept)
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    whole = _load_state_dict_from_keys(storage_reader=checkpoints.reader(2))  # without knowing what is in it
    assert same(whole["typed"], kinds()["typed"])
    with refusal(InvalidRuntime, what="checkpoint_id", given="somewhere", accepted=3):
        dcp.save(kinds(), storage_writer=checkpoints.writer(3), checkpoint_id="somewhere")


@pytest.mark.gpu
def test_training_on_a_gpu_goes_on_bit_by_bit(tmp_path):
    """From a checkpoint that was saved beside it: every loss and every batch are those of a training without a stop."""
    root, draw = loader.Root(tmp_path / "data"), np.random.default_rng(0)
    with root.write("points") as writer:
        for number in range(40):
            writer.add(f"{number:03d}", {"x.npy": draw.normal(size=32).astype(np.float32), "cls": number % 3})
    plan = loader.plan({"points": root.open("points@1")}, seed=7, global_batch=8)

    def trained(run, stop, seed=0):
        """(step, digest, bytes of the inputs, loss) of each step up to `stop`."""
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        state, found = {"train": TrainingState(model, optimizer)}, []
        with (
            loader.Loader(plan, 0, 1, steps=stop) as batches,
            Checkpoints(tmp_path / "kept", run) as checkpoints,
        ):
            checkpoints.load(state, batches)
            for batch in batches:
                batch = batch.to("cuda", non_blocking=True)
                loss = nn.functional.cross_entropy(model(batch["x.npy"]), batch["cls"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append((batch.step, batch.digest, batch["x.npy"].cpu().numpy().tobytes(), loss.item()))
                if batches.step % 5 == 0:
                    checkpoints.save(batches.step, state, batches, wait=False)
        return found

    whole = trained("whole", 12)
    assert len({loss for *_, loss in whole}) == 12
    assert trained("cut", 8) == whole[:8]
    assert trained("cut", 12, seed=1) == whole[5:], (
        "goes on from step 5, with the weights and moments of then"
    )


class Custom:
    """No plain value."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("custom", Custom()),
        ("code", print),
        ("complex128", torch.zeros(2, dtype=torch.complex128)),
        ("sparse", torch.eye(3).to_sparse()),
    ],
)
def test_what_could_not_be_loaded_safely_is_not_saved(tmp_path, name, value):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    with pytest.raises((InvalidField, NotImplementedError), match=f"{name}|Sparse"):
        checkpoints.save(1, {"good": torch.zeros(3), name: value})
    assert checkpoints.latest() is None
    checkpoints.save(1, {"good": torch.zeros(3)})


def test_pickle_that_runs_code_is_not_opened(tmp_path):
    """Whoever can write to the store can write a value with a right checksum; it is not run."""
    from penstock.checkpoints.parts import Index, encode_index

    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    checkpoints = Checkpoints(tmp_path / "root", "run")
    sink = io.BytesIO()
    torch.save(Evil(), sink)
    data = sink.getvalue()
    from penstock.checkpoints.parts import TensorPiece, seal_part

    piece = TensorPiece(
        item=None, label="x", dtype="U8", within=(), offsets=(), sizes=(len(data),), nbytes=len(data)
    )
    part, (placed,) = seal_part("evil.safetensors", [piece], [memoryview(data)])
    text = encode_index(Index(tensors={}, values={"x": placed}, paths={"x": ("x",)}))
    stored = marker.StoredObject(name="index.json", nbytes=len(text), sha256=marker.sha256(text))
    made = marker.Checkpoint(run="run", step=1, at_us=0, world_size=1, index=stored, parts=(placed.part,))
    store = open_store(str(tmp_path / "root"))
    store.put(made.key(placed.part), part)
    store.put(made.key(stored), text)
    store.put(marker.marker_key("run", 1), marker.encode(made))
    with refusal(Corrupt, what="x", where=f"{tmp_path}/root: checkpoint of step 1 of run 'run'"):
        checkpoints.load({"x": 0})


def test_optimizer_without_moments_does_not_lose_them_without_a_word(tmp_path):
    def made():
        model = nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = made()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path / "root", "run")
    checkpoints.save(1, {"model": model, "optimizer": optimizer})
    checkpoints.save(2, {"train": TrainingState(model, optimizer)})

    fresh, unused = made()
    with refusal(
        CheckpointMismatch,
        what="state",
        given=[
            "optimizer.state.0.exp_avg",
            "optimizer.state.0.exp_avg_sq",
            "optimizer.state.0.step",
            "optimizer.state.1.exp_avg",
            "optimizer.state.1.exp_avg_sq",
            "optimizer.state.1.step",
        ],
    ):
        checkpoints.load({"model": fresh, "optimizer": unused}, step=1)
    checkpoints.load({"model": fresh}, step=1, partial=True)
    assert torch.equal(fresh.weight, model.weight)

    fresh, unused = made()
    checkpoints.load({"train": TrainingState(fresh, unused)})
    assert same(copy.deepcopy(unused.state_dict()), copy.deepcopy(optimizer.state_dict()))
    fresh, _ = made()
    checkpoints.load({"train": TrainingState(fresh)}, partial=True)  # for evaluation
    assert torch.equal(fresh.weight, model.weight)
    with pytest.raises(ValueError, match="Size mismatch"):
        checkpoints.load({"train": TrainingState(nn.Linear(3, 5))}, partial=True)
    with pytest.raises(RuntimeError, match="Missing key"):
        checkpoints.load({"other": torch.zeros(1)}, partial=True)


@pytest.mark.parametrize("how", ["flip", "truncate", "delete", "index", "index-gone"])
def test_damage_is_found_and_named(tmp_path, how):
    checkpoints = Checkpoints(tmp_path / "root", "run", part_bytes=2**20)
    checkpoints.save(1, {"a": torch.arange(1000), "b": torch.arange(700_000), "c": {"lr": 0.5}})
    made = checkpoints.latest()
    one = made.index if how.startswith("index") else made.parts[1]
    path = tmp_path / "root" / made.key(one)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    if how in ("flip", "index"):
        path.write_bytes(data)
    elif how == "truncate":
        path.write_bytes(data[:-9])
    with pytest.raises(CorruptCheckpoint) as caught:
        checkpoints.load(
            {
                "a": torch.zeros(1000, dtype=torch.int64),
                "b": torch.zeros(700_000, dtype=torch.int64),
                "c": {"lr": 0},
            }
        )
    assert made.key(one) in str(caught.value)
    if how == "flip":
        assert "'b' is not what was written" in str(caught.value)
        assert "step 1 of run 'run'" in str(caught.value)


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_flipped_byte_on_the_way_is_read_once_more(tmp_path, monkeypatch, place):
    url = tmp_path / "root" if place == "disk" else "memory://a-flipped-byte-on-the-way"
    checkpoints = Checkpoints(url, "run")
    checkpoints.save(1, {"a": torch.arange(1000)})
    store = checkpoints._root.store
    verb, lies = "read_into" if place == "disk" else "get_ranges", []
    honest = getattr(store, verb)

    def lying(key, spans, **options):
        found = honest(key, spans, **options)
        lies.append(key)
        if place == "disk":
            spans[0][2][0][0] ^= 1
            return found
        return [blob._replace(data=bytes([blob.data[0] ^ 1]) + blob.data[1:]) for blob in found]

    monkeypatch.setattr(store, verb, lying)
    found = {"a": torch.zeros(1000, dtype=torch.int64)}
    checkpoints.load(found)
    assert lies
    assert torch.equal(found["a"], torch.arange(1000))


def test_load_that_failed_fills_nothing_during_the_next(tmp_path, monkeypatch):
    """Two reads into tensors are still at work when a part turns out to be damaged: they end before that is raised."""
    state = {f"t{number}": torch.full((1024,), 10.0) for number in range(3)}
    checkpoints = Checkpoints(tmp_path / "root", "run", part_bytes=4096)
    checkpoints.save(10, state)
    checkpoints.save(20, {name: torch.full((1024,), 20.0) for name in state})
    made = checkpoints.at(20)
    path = tmp_path / "root" / made.key(made.parts[0])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    store, begun, go, ended = (
        checkpoints._root.store,
        threading.Semaphore(0),
        threading.Event(),
        threading.Semaphore(0),
    )
    read_into, get_range, join = store.read_into, store.get_range, DaemonPool.join

    def late(key, pieces):
        if key not in map(made.key, made.parts[1:]):
            return read_into(key, pieces)
        begun.release()
        assert go.wait(PATIENCE_S)
        found = read_into(key, pieces)
        ended.release()
        return found

    def again(*args):
        assert all(begun.acquire(timeout=PATIENCE_S) for _ in made.parts[1:])
        return get_range(*args)

    def joined(pool, timeout_s=None):
        go.set()
        join(pool, timeout_s)

    monkeypatch.setattr(store, "read_into", late)
    monkeypatch.setattr(store, "get_range", again)
    monkeypatch.setattr(DaemonPool, "join", joined)
    found = blank(state)
    with pytest.raises(CorruptCheckpoint):
        checkpoints.load(found, step=20)
    checkpoints.load(found, step=10)
    go.set()
    assert all(ended.acquire(timeout=PATIENCE_S) for _ in made.parts[1:])
    assert same(found, state)


def test_only_the_blocks_are_read_that_hold_what_is_asked_for(tmp_path):
    """10 MiB of which two rows are asked for: as a rank of very many would."""
    checkpoints = Checkpoints(tmp_path / "root", "run")
    checkpoints.save(1, {"w": torch.arange(2_560 * 1024).reshape(2_560, 1024)})
    reader, read = checkpoints.reader(1), []
    honest = checkpoints._root.store.read_into
    checkpoints._root.store.read_into = lambda key, pieces: read.extend(pieces) or honest(key, pieces)
    checkpoints._root.store.get_range = lambda *_: pytest.fail("read once more")
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    place = dcp.metadata.MetadataIndex("w", torch.Size([0, 0]))
    rows = torch.Size([1_000, 0])
    item = ReadItem(LoadItemType.TENSOR, place, torch.Size([0, 0]), place, rows, torch.Size([2, 1024]))
    target = torch.zeros(2, 1024, dtype=torch.int64)

    class Planner(dcp.DefaultLoadPlanner):
        def resolve_tensor(self, item):
            return target

    reader.read_data(LoadPlan([item]), Planner()).wait()
    assert torch.equal(target, torch.arange(1_000 * 1024, 1_002 * 1024).reshape(2, 1024))
    assert [nbytes for _, nbytes, _ in read] == [2**20]


def test_of_a_disk_whole_pieces_are_read_into_the_tensors_themselves(tmp_path):
    """Into others beside them, and copied: what lies in another order there, or is of another type."""
    checkpoints = Checkpoints(tmp_path / "root", "run")
    values = torch.arange(6.0).reshape(2, 3)
    checkpoints.save(1, {"same": values, "turned": values, "halved": values})
    found = {
        "same": torch.zeros(2, 3),
        "turned": torch.zeros(3, 2).t(),
        "halved": torch.zeros(2, 3, dtype=torch.float16),
    }
    store, buffers = checkpoints._root.store, []
    honest = store.read_into
    store.read_into = lambda key, pieces: buffers.extend(one[2][0] for one in pieces) or honest(key, pieces)
    checkpoints.load(found)
    assert all(torch.equal(one.float(), values) for one in found.values())
    at = {torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() for buffer in buffers}
    assert at & {one.data_ptr() for one in found.values()} == {found["same"].data_ptr()}


def test_loaders_state_goes_with_it_and_another_order_is_refused_before_anything_is_filled(tmp_path):
    with loader.Root(tmp_path / "data") as root:
        with root.write("points") as writer:
            for number in range(12):
                writer.add(f"{number:02d}", {"cls": number})
        plan = loader.plan({"p": root.open("points@1")}, seed=1, global_batch=4)
        with loader.Loader(plan, 0, 1) as batches, Checkpoints(root, "run") as checkpoints:
            digests = [next(batches).digest for _ in range(3)]
            checkpoints.save(3, {"w": torch.ones(2)}, batches)
            digests += [next(batches).digest for _ in range(3)]
            made = checkpoints.latest()
        assert made.plan == plan.hash
        assert made.versions == ({"source": "p", "id": root.record("points@1").id, "name": "points@1"},)
        assert made.loader == plan.state(3)
        with loader.Loader(plan, 0, 1) as batches, Checkpoints(root, "run") as checkpoints:
            assert checkpoints.load({"w": torch.zeros(2)}, batches).step == 3
            assert [next(batches).digest for _ in range(3)] == digests[3:]
        other = loader.plan({"p": root.open("points@1")}, seed=2, global_batch=4)
        with loader.Loader(other, 0, 1) as batches, Checkpoints(root, "run") as checkpoints:
            filled = {"w": torch.zeros(2)}
            with refusal(PlanMismatch, what="state", where="step 3", given=["seed"]):
                checkpoints.load(filled, batches)
            assert torch.equal(filled["w"], torch.zeros(2))
            checkpoints.save(4, filled)
            with refusal(InvalidRuntime, what="batches", given=4, accepted="None"):
                checkpoints.load(filled, batches)


def test_steps_of_a_run_only_go_up(tmp_path):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    checkpoints.save(5, {"w": torch.ones(2)})
    files = sorted(tmp_path.rglob("*.*"))
    for step in (5, 4):
        with refusal(Conflict, what="step", given=step, accepted="more than 5"):
            checkpoints.save(step, {"w": torch.zeros(2)})
    assert sorted(tmp_path.rglob("*.*")) == files  # refused before a byte is written
    Checkpoints(tmp_path / "root", "branch").save(4, {"w": torch.zeros(2)})
    for step in (-1, 10**12, True, "7", 1.0):
        with refusal(InvalidRuntime, what="step", given=step):
            checkpoints.save(step, {"w": torch.zeros(2)})


def gated(store, name, word):
    """(reached, go): the store's verb `name` says that it was called for a key with `word` in it, and waits."""
    verb, reached, go = getattr(store, name), threading.Event(), threading.Event()

    def wait(key, data):
        if word in key:
            reached.set()
            assert go.wait(PATIENCE_S)
        return verb(key, data)

    setattr(store, name, wait)
    return reached, go


@pytest.mark.parametrize("at", [("put", "-index.json"), ("put_if_absent", "/steps/")])
def test_save_that_stood_still_while_others_went_on_is_withdrawn(tmp_path, at):
    slow = Checkpoints(tmp_path / "root", "run")
    reached, go = gated(slow._root.store, *at)
    slow.save(5, {"w": torch.ones(2)}, wait=False)
    assert reached.wait(PATIENCE_S)
    fast = Checkpoints(tmp_path / "root", "run", keep_last=1)
    fast.save(6, {"w": torch.zeros(2)})  # deletes the parts of step 5, which nothing names
    if "put" in at:  # it is told before it makes a marker
        slow._root.store.put_if_absent = None
    go.set()
    with refusal(Conflict, what="step", where=f"{tmp_path}/root: run 'run'", given=5, accepted="more than 6"):
        slow.wait()
    assert fast.steps() == [6]
    assert fast.load({"w": torch.ones(2)}).step == 6


def test_no_save_is_withdrawn_for_a_marker_that_is_listed_and_not_there(tmp_path):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    store = checkpoints._root.store
    late = ObjectInfo(key=marker.marker_key("run", 9), nbytes=1, etag="old")
    real, create = store.list, store.put_if_absent

    def put_if_absent(key, data):
        create(key, data)
        if "/steps/" in key:  # until now listings told the truth
            store.list = lambda prefix="", *a: iter([*real(prefix, *a), late])

    store.put_if_absent = put_if_absent
    checkpoints.save(5, {"w": torch.ones(2)})
    store.list = real
    assert checkpoints.steps() == [5]


def test_what_changes_while_a_save_is_on_its_way_is_not_in_it(tmp_path):
    weights = torch.arange(5000.0)
    with Checkpoints(tmp_path / "root", "run") as checkpoints:
        reached, go = gated(checkpoints._root.store, "put", "safetensors")
        checkpoints.save(1, {"w": weights}, wait=False)
        assert reached.wait(PATIENCE_S)
        weights.fill_(-1.0)
        go.set()
    found = {"w": torch.zeros(5000)}
    Checkpoints(tmp_path / "root", "run").load(found)
    assert torch.equal(found["w"], torch.arange(5000.0))


@pytest.mark.parametrize("wait", [True, False])
def test_filters_of_warnings_stay_as_they_are(tmp_path, wait):
    """Also while a save is on its way: those of its thread are those of the training."""
    before, state = warnings.filters[:], {"w": torch.ones(2)}
    with Checkpoints(tmp_path / "root", "run") as checkpoints:
        checkpoints.save(1, state, wait=wait)
        assert warnings.filters == before
        checkpoints.load(state)
        assert warnings.filters == before
    assert warnings.filters == before


def test_save_beside_the_training_that_cannot_begin_is_not_waited_for(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("no plan")

    checkpoints = Checkpoints(tmp_path / "root", "run")
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointWriter, "storage_meta", broken)
        checkpoints.save(1, {"w": torch.ones(2)}, wait=False)
        with pytest.raises(RuntimeError) as broken_save:
            checkpoints.close()
        assert broken_save.value.args == ("no plan",)
    checkpoints.save(1, {"w": torch.ones(2)})


@pytest.fixture
def said():
    """A queue of what penstock.checkpoints logs."""
    lines, log = queue.SimpleQueue(), logging.getLogger("penstock.checkpoints")
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


@pytest.mark.parametrize("then", ["save", "wait", "load", "close"])
def test_error_beside_the_training_is_logged_and_raised_by_the_next_call(tmp_path, said, then):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    checkpoints.save(1, {"w": torch.ones(2)})
    in_the_way = tmp_path / "root" / "checkpoints" / "run" / "parts" / "000000000002"
    in_the_way.write_text("a file where a folder has to be")
    checkpoints.save(2, {"w": torch.ones(2)}, wait=False)
    assert "step 2 was not saved" in said.get(timeout=PATIENCE_S)
    calls = {
        "save": lambda: checkpoints.save(3, {"w": torch.ones(2)}),
        "wait": checkpoints.wait,
        "load": lambda: checkpoints.load({"w": torch.ones(2)}),
        "close": checkpoints.close,
    }
    with refusal(StoreError, what="object", given="ENOTDIR", within="000000000002"):
        calls[then]()
    assert checkpoints.steps() == [1]
    in_the_way.unlink()
    checkpoints.save(2, {"w": torch.ones(2)})
    checkpoints.close()


def test_old_ones_are_deleted_after_a_save_and_what_cannot_be_is_logged(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path / "root", "run", keep_last=2, keep_every=4)
    for step in range(1, 8):
        checkpoints.save(step, {"w": torch.ones(2)})
    assert checkpoints.steps() == [4, 6, 7]
    store = checkpoints._root.store

    def refused(keys):
        raise StoreError("deleting is forbidden here")

    store.delete_many = refused
    checkpoints.save(8, {"w": torch.ones(2)})
    assert "deleting is forbidden here" in caplog.text
    assert checkpoints.steps() == [4, 6, 7, 8]
    del store.delete_many
    checkpoints.save(9, {"w": torch.ones(2)})
    assert checkpoints.steps() == [4, 8, 9]


def test_what_a_save_that_died_left_is_deleted_after_a_later_save_too(tmp_path, monkeypatch):
    loader.Root(tmp_path / "root").create()
    checkpoints = Checkpoints(tmp_path / "root", "run")
    store = checkpoints._root.store

    def refused(*_):
        raise StoreError("not now", what="request")

    with monkeypatch.context() as dying:
        dying.setattr(store, "put_if_absent", refused)
        with refusal(StoreError, what="request"):
            checkpoints.save(10, {"w": torch.ones(2)})
    with monkeypatch.context() as denied:
        denied.setattr(store, "delete_many", refused)
        checkpoints.save(10, {"w": torch.ones(2)})
    assert len(list(store.list("checkpoints/run/parts/"))) == 4
    checkpoints.save(20, {"w": torch.ones(2)})
    named = {made.key(one) for made in map(checkpoints.at, (10, 20)) for one in made.objects}
    assert {one.key for one in store.list("checkpoints/run/parts/")} == named


def test_parts_in_memory_are_few(tmp_path):
    """Of 40 parts no more than four are being made at a time."""
    checkpoints = Checkpoints(tmp_path / "root", "run", part_bytes=4096)
    store, lock, now, most = checkpoints._root.store, threading.Lock(), [0], [0]
    put, barrier = store.put, threading.Barrier(4)

    def counting(key, data):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if key.endswith(".safetensors"):
            barrier.wait(PATIENCE_S)  # four at once, or nobody gets on
        put(key, data)
        with lock:
            now[0] -= 1

    store.put = counting
    checkpoints.save(1, {"w": torch.zeros(40, 1024)})
    assert len(checkpoints.latest().parts) == 40
    assert most[0] == 4


def test_listing_and_requests(tmp_path):
    checkpoints = Checkpoints(tmp_path / "root", "run")
    assert checkpoints.steps() == []
    checkpoints.save(1, {"w": torch.ones(2)})
    with count_requests(traffic := Traffic()):
        checkpoints.load({"w": torch.ones(2)})
    assert traffic.requests == 3  # marker, index, one range
    assert not distributed.is_initialized()


@pytest.mark.parametrize("how", ["save", "load"])
def test_two_values_of_one_name_are_named(tmp_path, how):
    """torch joins the keys of nested dicts with dots, and says ValueError."""
    twice = {"ema": {"layer": {"weight": torch.zeros(2)}}, "ema.layer": {"weight": torch.ones(2)}}
    with Checkpoints(tmp_path / "root", "run") as checkpoints:
        checkpoints.save(1, {"ema.layer": {"weight": torch.ones(2)}, "dots.are.fine": torch.ones(1)})
        with refusal(
            InvalidField,
            what="ema.layer.weight",
            given=["['ema']['layer']['weight']", "['ema.layer']['weight']"],
            accepted="one value of a name",
        ):
            checkpoints.save(2, twice) if how == "save" else checkpoints.load(twice, partial=True)
        assert checkpoints.latest().step == 1


@pytest.mark.filterwarnings(ALONE)
def test_load_has_its_long_budget_while_the_store_throttles(monkeypatch):
    root = loader.Root("memory://patient")
    state = {"weights": torch.arange(30.0)}
    with Checkpoints(root, "run") as saved:
        saved.save(1, state)
        budgets, read = [], type(root.store).get_ranges

        def recorded(store, *given, **named):
            budgets.append([RetryBudget().lasts(599, throttled=throttled) for throttled in (True, False)])
            return read(store, *given, **named)

        monkeypatch.setattr(type(root.store), "get_ranges", recorded)
        saved.load({"weights": torch.zeros(30)})
    assert budgets
    assert set(map(tuple, budgets)) == {(True, False)}
