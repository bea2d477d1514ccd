"""Properties of the loader (docs/order.md): functions that raise AssertionError."""

import json
import struct
from contextlib import ExitStack

import google_crc32c
import numpy as np

import loader
from loader.order.digests import identity_hash
from loader.order.random.keyed_permutation import hash_fields, sub
from loader.order.substitutes import substitute

MODULUS = 2**64


def open_ranks(stack, plan, world_size, **options):
    """One loader per rank, closed with the stack."""
    return [
        stack.enter_context(loader.Loader(plan, rank, world_size, **options)) for rank in range(world_size)
    ]


def reference_digests(plan, steps, **options):
    """step -> digest of the global batch, from one rank that makes every batch when it is asked for."""
    options = {"workers": 0, "framework": "numpy", **options}
    with loader.Loader(plan, 0, 1, steps=steps, **options) as batches:
        return {batch.step: batch.digest for batch in batches}


def sequence_digest(plan, step, source, fields):
    """The delivered digest of a step of packed sequences of one source, by its formula. fields: of its documents."""
    identity, total = identity_hash(plan.sources[source].view.identity), 0
    for slot, one in enumerate(loader.explain(plan, step)):
        packed = b""
        for piece in one.pieces:
            crcs = [piece.address.fields[field].crc32c for field in fields]
            where = (piece.address.ordinal, piece.start, piece.stop - piece.start)
            packed += struct.pack(f"<QQI{len(crcs)}I", *where, *crcs)
        own = sub(identity, one.address.ordinal)
        total += sub(sub(sub(sub(hash_fields("delivered"), step), slot), own), google_crc32c.value(packed))
    return total % MODULUS


def cells(batch):
    """Per slot, field -> value, arrays and tensors as numpy arrays; a field that a slot has not is left out."""
    out = [{} for _ in batch.ids]
    for field, column in batch.items():
        for slot, value in enumerate(column):
            if value is not None:
                plain = isinstance(value, str | bytes | dict)
                out[slot][field] = value if plain else np.asarray(value)
    return out


def equal(got, wanted):
    """Whether one decoded value is the other, in dtype, shape and bytes; a Python int is an int64."""
    if isinstance(wanted, str | bytes | dict):
        return type(got) is type(wanted) and got == wanted
    got, wanted = np.asarray(got), np.asarray(wanted)
    same_kind = got.dtype == wanted.dtype and got.shape == wanted.shape
    return same_kind and got.tobytes() == wanted.tobytes()


def check_step(plan, step, batches, truth):
    """The ranks' batches of one step are its global batch, in order and in content."""
    assert [batch.step for batch in batches] == [step] * len(batches)
    ids = [one for batch in batches for one in batch.ids]
    assert ids == plan.batch_ids(step)
    got = [cell for batch in batches for cell in cells(batch)]
    for (source, key), cell in zip(ids, got, strict=True):
        fields = plan.sources[source].view.fields
        assert set(cell) == set(fields)
        wanted = truth(source, key)
        for field in fields:
            assert equal(cell[field], wanted[field]), (step, key, field, cell[field], wanted[field])


def delivers_the_plan(plan, truth, *, world_size, start=0, steps=3, **options):
    """Properties 2 and 4: every world size and runtime delivers the same samples, bytes and digests."""
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as alone:
        wanted = {step: alone.batch_at(step).digest for step in range(start, start + steps)}
    assert len(set(wanted.values())) == len(wanted)
    with ExitStack() as stack:
        ranks = open_ranks(stack, plan, world_size, steps=start + steps, **options)
        for rank in ranks:
            rank.seek(start)
        for step in range(start, start + steps):
            batches = [next(rank) for rank in ranks]
            check_step(plan, step, batches, truth)
            assert sum(batch.digest for batch in batches) % MODULUS == wanted[step]
            assert all(np.asarray(batch.mask).all() for batch in batches)
        for rank in ranks:
            assert next(rank, None) is None
            assert next(rank, None) is None


def resumes_exactly(plan, script, **options):
    """Property 3. script: (world size, batches to take, whether to save again right after loading), in turn."""
    total = sum(taken for _, taken, _ in script)
    wanted = reference_digests(plan, total)
    got, state = {}, None
    for world_size, taken, save_after_load in script:
        with ExitStack() as stack:
            ranks = open_ranks(stack, plan, world_size, **options)
            if state is not None:
                for rank in ranks:
                    rank.load_state_dict(json.loads(state))
                if save_after_load:
                    assert state_text(ranks) == state
            for _ in range(taken):
                batches = [next(rank) for rank in ranks]
                assert len({batch.step for batch in batches}) == 1
                assert batches[0].step not in got, "a step came twice"
                got[batches[0].step] = sum(batch.digest for batch in batches) % MODULUS
            state = state_text(ranks)
    assert got == wanted
    assert json.loads(state)["step"] == total


def state_text(ranks):
    """The state as JSON text: the same on every rank, and small."""
    texts = {json.dumps(rank.state_dict(), sort_keys=True) for rank in ranks}
    assert len(texts) == 1
    text = texts.pop()
    assert len(text) < 1024 + 90 * text.count("w-")  # per source, and per bucket of one
    return text


def augments_by_sample(plan, *, steps=2):
    """What a transform draws for a sample depends on nothing but the sample and its epoch."""
    drawn = {}
    for world_size, options in ((1, {"workers": 0}), (3, {"workers": 2}), (8, {"workers": 1})):
        with ExitStack() as stack:
            ranks = open_ranks(stack, plan, world_size, transform=draw, framework="numpy", **options)
            for step in range(steps):
                epochs = iter(plan.slots(step).epoch.tolist())
                for batch in [next(rank) for rank in ranks]:
                    for one, value in zip(batch.ids, batch["drawn"].tolist(), strict=True):
                        at = (*one, next(epochs))
                        assert drawn.setdefault(at, value) == value
    assert len(set(drawn.values())) == len(drawn)


def draw(sample, rng):
    return {"drawn": int(rng.integers(2**62))}


def with_substitutes(plan, step, bad):
    """The ids of a step whose corrupt samples, `bad` (source, key), are substituted by the rule of docs/order.md; and
    (slot, attempt, key of the corrupt one, key of the substitute) of each substitution."""
    slots, ids, made = plan.slots(step), [], []
    for slot, (name, key) in enumerate(plan.batch_ids(step)):
        attempt, taken = int(slots.attempt[slot]), key
        while (name, taken) in bad:
            attempt += 1
            where = (int(slots.source[slot]), int(slots.position[slot]), attempt)
            _, ordinal = substitute(plan, *where)
            (found,) = plan.sources[name].view.keys(np.array([ordinal]))
            made.append((slot, attempt, taken, found))
            taken = found
        ids.append((name, taken))
    return ids, made


def substitutes_exactly(plan, bad, truth, *, world_size, start=0, steps=4, cut=2, **options):
    """Corrupt samples are substituted by the rule, in the same slots with the same digests, whatever the runtime and
    wherever the run is resumed. bad: (source, key) of the samples that cannot be read."""
    options = {"corrupt_budget": 1.0, "framework": "numpy", **options}
    with loader.Loader(plan, 0, 1, **{**options, "workers": 0}) as alone:
        wanted = {step: alone.batch_at(step).digest for step in range(start, start + steps)}
    state = plan.state(start)
    for first, last in ((start, start + cut), (start + cut, start + steps)):
        with ExitStack() as stack:
            ranks = open_ranks(stack, plan, world_size, **options)
            for rank in ranks:
                rank.load_state_dict(state)
            for step in range(first, last):
                batches = [next(rank) for rank in ranks]
                ids, made = with_substitutes(plan, step, bad)
                assert [one for batch in batches for one in batch.ids] == ids
                got = [cell for batch in batches for cell in cells(batch)]
                for (name, key), cell in zip(ids, got, strict=True):
                    for field in plan.sources[name].view.fields:
                        assert equal(cell[field], truth(name, key)[field]), (step, key, field)
                said = [one for batch in batches for one in batch.substitutions]
                assert [(one.slot, one.attempt, one.address.key, one.substitute) for one in said] == made
                assert sum(batch.digest for batch in batches) % MODULUS == wanted[step]
            state = json.loads(state_text(ranks))
    return wanted
