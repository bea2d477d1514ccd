"""Writes order-<version>.json: what the formulas of docs/order.md give for fixed inputs.

    python tests/order/golden/regenerate.py

A golden file that exists is never overwritten: when the order changes, raise ORDER_VERSION in
loader/order/content.py, keep the old formulas for plans of the old version, and run this to add a file.
64-bit numbers are written in hex, since many JSON readers round whole numbers above 2^53.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from loader.order.content import ORDER_VERSION
from loader.order.digests import delivered_digest, planned_digest, slot_identities
from loader.order.mixture import quota_table
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.random.generators import sample_generator
from loader.order.random.keyed_permutation import key, mix64, perm, sub
from loader.order.random.lanes import LaneShape, locate
from loader.order.sources.bucket import bucket
from loader.order.sources.pack_request import pack
from loader.order.sources.pack_table import pack_documents
from loader.order.sources.packing import PackedView
from loader.order.sources.views import synthetic
from loader.order.substitutes import substitute
from loader.order.weights import integer_weights

HERE = Path(__file__).parent
KEYS = [
    (0, "a", "P", 0),
    (7, "photos", "R", 1),
    (2**64 - 1, "photos/b3", "rot", 10**6),
    (7, "é", "augment", 0, 5, 1),
]
NUMBERS = [0, 1, 2**32, 2**63, 2**64 - 1]
PERMS = [1, 2, 16, 128, 129, 1000, 65_536, 10**9, 2**53]
SHAPES = [  # N, c, D, h
    (1, 1, 1, 1),
    (5, 8, 4, 4),
    (1000, 1, 1, 1),
    (1003, 4, 8, 4),
    (100_000, 256, 16, 4),
    (10**6, 2, 1024, 4),
    (10**9, 8192, 1024, 4),
]
TABLES = [{"a": 1}, {"a": 1, "b": 1}, {"web": 7, "photos": 2, "audio": 1}, {"a": 5, "b": 5, "c": 3, "d": 1}]
SAMPLES = [(7, "photos", 0, 0), (7, "photos", 1, 123_456_789), (2**64 - 1, "é", 3, 1)]


def plans():
    """name -> (plan, steps)"""
    photos, web = synthetic(100_000, "photos"), synthetic(5000, "web")
    mixed = {"photos": source(photos, 7, chunk=16, lanes=64), "web": source(web, 3)}
    return {
        "one full shuffle": (
            make_plan({"photos": synthetic(1000)}, seed=0, global_batch=64),
            [0, 1, 15, 16, 10**6],
        ),
        "a mixture with a schedule": (
            make_plan(mixed, seed=7, global_batch=96, schedule=[(100, {"photos": 1, "web": 1})]),
            [0, 99, 100, 5000, 2**53 - 1],
        ),
        "1e9 samples": (
            make_plan({"big": synthetic(10**9)}, seed=2**64 - 1, global_batch=1024),
            [0, 976_561, 976_562, 10**7],
        ),
    }


def ramp_plans():
    """name -> (plan, steps): batches that change with the weights, and apart from them."""
    photos, web = synthetic(100_000, "photos"), synthetic(5000, "web")
    mixed = {"photos": source(photos, 7, chunk=16, lanes=64), "web": source(web, 3)}
    return {
        "a ramp and a schedule": (
            make_plan(
                mixed,
                seed=7,
                global_batch=[(0, 32), (50, 48), (100, 96), (200, 32)],
                schedule=[(100, {"photos": 1, "web": 1}), (150, {"photos": 5, "web": 2})],
            ),
            [0, 49, 50, 99, 100, 149, 150, 200, 2**53 - 1],
        ),
    }


def growth_plans():
    """name -> (plan, steps): the second growth comes while the first is still mixed in, the third after that."""
    made = make_plan(
        {"photos": source(synthetic(10_000, "photos"), 3, chunk=4, lanes=16), "web": synthetic(5000, "web")},
        seed=7,
        global_batch=[(0, 64), (100, 96)],
    )
    for n, step in ((13_000, 150), (20_000, 200), (20_500, 700)):
        made = made.grow({"photos": source(synthetic(n, "photos"), chunk=4, lanes=16)}, step)
    made = made.grow({"web": synthetic(5500, "web")}, 700)
    return {"three growths and a ramp": (made, [0, 149, 150, 199, 200, 290, 699, 700, 2**53 - 1])}


def bucket_ramp_plans():
    """name -> (plan, steps): a budget that changes under a global batch that does too, and a schedule."""
    photos = synthetic(3600, "photos", {"w64h64": 2400, "w128h64": 960, "w64h64f16": 240})
    web = synthetic(800, "web", {"w64h64": 320, "é": 480})
    asked = bucket(
        "bucket",
        budget=[(0, 64 * 64 * 32), (30, 64 * 64 * 64), (60, 64 * 64 * 48)],
        multiple=2,
        cost={"é": 4096},
    )
    made = make_plan(
        {"photos": source(photos, 3, chunk=4, lanes=16), "web": web},
        seed=7,
        global_batch=[(0, 24), (45, 48)],
        bucket_by=asked,
        schedule=[(40, {"photos": 1, "web": 1})],
    )
    return {"a budget, a ramp and a schedule": (made, [0, 29, 30, 40, 45, 60, 10**7, 2**53 - 1])}


def bucket_growth_plans():
    """name -> (plan, steps): a bucket grows while it is mixed already, and one comes with the first growth."""

    def photos(**sizes):
        return source(synthetic(sum(sizes.values()), "photos", sizes), 3, chunk=4, lanes=16)

    def make_bucket(*labels):
        batch = {label: size for label, size in {"w64h64": 24, "tall": 16}.items() if label in labels}
        return bucket("bucket", batch=batch)

    web = synthetic(900, "web", {"w64h64": 420, "é": 480})
    made = make_plan(
        {"photos": photos(w64h64=3000, w128h64=1200), "web": web},
        seed=7,
        global_batch=32,
        bucket_by=make_bucket("w64h64"),
        schedule=[(20, {"photos": 1, "web": 1})],
    )
    for step, view in (
        (40, photos(w64h64=3300, w128h64=2000, tall=500)),
        (70, photos(w64h64=3300, w128h64=2400, tall=900)),
    ):
        made = made.grow({"photos": replace(view, weight=1)}, step, bucket_by=make_bucket("w64h64", "tall"))
    made = made.grow({"web": synthetic(1000, "web", {"w64h64": 500, "é": 500})}, 70)
    return {"three growths and a schedule": (made, [0, 39, 40, 69, 70, 150, 10**7, 2**53 - 1])}


def bucket_plans():
    """name -> (plan, steps)"""
    photos = synthetic(90_000, "photos", {"w64h64": 54_000, "w128h64": 34_560, "w64h64f16": 1440})
    web = synthetic(800, "web", {"w64h64": 320, "é": 480})
    sizes = {f"w{64 * k}h64": 1_000_003 * k for k in range(1, 41)}
    return {
        "a mixture with a schedule": (
            make_plan(
                {"photos": source(photos, 3, chunk=16, lanes=64), "web": web},
                seed=7,
                global_batch=96,
                bucket_by=bucket("bucket", batch={"w64h64f16": 6, "w128h64": 48}),
                schedule=[(100, {"photos": 1, "web": 1})],
            ),
            [0, 99, 100, 5000, 2**53 - 1],
        ),
        "a budget, and shares that are rounded": (
            make_plan(
                {"photos": synthetic(sum(sizes.values()), "photos", sizes)},
                seed=2**64 - 1,
                global_batch=1024,
                bucket_by=bucket("bucket", budget=64 * 64 * 1000, multiple=8),
            ),
            [0, 1, 10**7],
        ),
    }


def of_plan(made, steps):
    out = {"hash": made.hash, "plan": made.to_json(), "batches": [], "state": made.state(steps[1])}
    for step in steps:
        slots = made.slots(step)
        columns = (slots.source, slots.position, slots.epoch, slots.ordinal)
        rows = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        numbers = np.arange(len(slots), dtype=np.int64)
        out["batches"].append(
            {
                "step": step,
                "first (source, i_k, epoch, ordinal)": rows[:4],
                "last": rows[-4:],
                "planned_digest": planned_digest(step, slots, made),
                "delivered_digest with crc = slot": hex(
                    delivered_digest(step, numbers, slot_identities(made, slots), numbers)
                ),
            }
        )
    return out


def of_shape(n, chunk, lane_count, h):
    shape = LaneShape(n=n, chunk=chunk, lanes=lane_count, rounds_h=h)
    edges = (0, 1, 2, n // 2, shape.body - 1, shape.body, shape.body + 1, n - 3, n - 2, n - 1)
    positions = sorted({i for i in edges if 0 <= i < n})
    epochs = [
        locate(shape, 7, "photos", epoch, np.array(positions, dtype=np.int64)).tolist() for epoch in (0, 1)
    ]
    return {
        "N, c, D, h": [n, chunk, lane_count, h],
        "positions": positions,
        "ordinals in epochs 0, 1": epochs,
    }


def of_perm(n):
    x = sorted({0, 1 % n, n // 2, n - 1})
    return {"k": hex(7), "n": n, "x": x, "perm": perm(7, n, np.array(x, dtype=np.int64)).tolist()}


def of_table(weights):
    names = sorted(weights)
    table, _ = quota_table(tuple(integer_weights(weights)[name] for name in names))
    return {"weights": weights, "table": [names[k] for k in table.tolist()]}


def of_sample(seed, name, epoch, ordinal):
    raw = sample_generator(seed, name, epoch, ordinal).bit_generator.random_raw(2).tolist()
    return {
        "seed": hex(seed),
        "source": name,
        "epoch": epoch,
        "ordinal": ordinal,
        "philox": [hex(r) for r in raw],
    }


def of_substitutes():
    made = make_plan({"photos": source(synthetic(5000), chunk=8, lanes=16)}, seed=7, global_batch=32)
    return [
        [position, attempt, substitute(made, 0, position, attempt)[0]]
        for position in (0, 12_345)
        for attempt in (1, 8)
    ]


def of_quarantine():
    """Every seventh sample quarantined from step 2 on, so that substitutes are too."""
    bad = [f"{ordinal:012d}" for ordinal in range(0, 700, 7)]
    made = make_plan(
        {"photos": source(synthetic(700, "photos"), chunk=4, lanes=8)},
        seed=7,
        global_batch=96,
        quarantine=[(2, {"photos": bad})],
    )
    slots = made.slots(9)
    held = np.flatnonzero(slots.attempt)
    columns = (held, slots.position[held], slots.attempt[held], slots.ordinal[held])
    return {
        "hash": made.hash,
        "plan": made.to_json(),
        "state": made.state(9),
        "(slot, i_k, attempt, ordinal) of step 9": [
            list(row) for row in zip(*(column.tolist() for column in columns), strict=True)
        ],
    }


def of_later_quarantine():
    """Samples that came with either growth, and old ones, quarantined at steps between and behind."""
    made = make_plan({"photos": source(synthetic(700, "photos"), chunk=4, lanes=8)}, seed=7, global_batch=96)
    for n, step in ((1000, 3), (1100, 12)):
        made = made.grow({"photos": source(synthetic(n, "photos"), chunk=4, lanes=8)}, step)
    for first, n, step in ((5, 700, 1), (0, 1000, 9), (8, 1100, 15)):
        made = made.quarantined({"photos": [f"{ordinal:012d}" for ordinal in range(first, n, 11)]}, step)
    rows = []
    for step in (2, 9, 11, 12, 16):
        slots = made.slots(step)
        held = np.flatnonzero(slots.attempt)
        columns = (slots.source[held], held, slots.position[held], slots.attempt[held], slots.ordinal[held])
        rows += [[step, *row] for row in zip(*(column.tolist() for column in columns), strict=True)]
    return {
        "hash": made.hash,
        "plan": made.to_json(),
        "state": made.state(16),
        "(step, source, slot, i_k, attempt, ordinal)": rows,
    }


def of_boundary():
    view = source(synthetic(1003, "photos"), chunk=4, lanes=8)
    return of_plan(
        make_plan({"photos": view}, seed=7, global_batch=64, boundary="mask"), [0, 15, 16, 10**7 + 15]
    )


def of_packing(n, length):
    """Documents of i * 7919 mod 613 tokens, every tenth 9 times as long."""
    number = np.arange(n, dtype=np.int64)
    tokens = number * 7919 % 613 * np.where(number % 10, 1, 9)
    table = pack_documents(2 * number, tokens, length)
    view = PackedView(synthetic(2 * n, "docs"), pack("tokens.npy", length), {"tokens.npy": "<u2"}, table)
    return {
        "documents": n,
        "length": length,
        "sequences": len(table),
        "sha256": table.sha256,
        "first (sequence, document, start, length)": table.rows(0, 8).tolist(),
        "last": table.rows(table.n_pieces - 8, table.n_pieces).tolist(),
        "view": view.id,
        "identity": view.identity,
        "spec": view.spec(),
    }


def golden():
    """Everything the golden file holds."""
    return {
        "order": ORDER_VERSION,
        "keys": [{"fields": [hex(k[0]), *k[1:]], "key": hex(key(*k))} for k in KEYS],
        "mix64": [[hex(a), hex(mix64(a))] for a in NUMBERS],
        "sub": [[hex(k), hex(a), hex(sub(k, a))] for k in NUMBERS for a in NUMBERS],
        "perm": [of_perm(n) for n in PERMS],
        "locate": [of_shape(*shape) for shape in SHAPES],
        "tables": [of_table(weights) for weights in TABLES],
        "samples": [of_sample(*who) for who in SAMPLES],
        "substitutes (i_k, attempt, ordinal)": of_substitutes(),
        "bucketed plans": {name: of_plan(*given) for name, given in bucket_plans().items()},
        "quarantine": of_quarantine(),
        "ramped bucketed plans": {name: of_plan(*given) for name, given in bucket_ramp_plans().items()},
        "grown bucketed plans": {name: of_plan(*given) for name, given in bucket_growth_plans().items()},
        "quarantine of what came with growths": of_later_quarantine(),
        "boundary": of_boundary(),
        "grown plans": {name: of_plan(*given) for name, given in growth_plans().items()},
        "ramped plans": {name: of_plan(*given) for name, given in ramp_plans().items()},
        "packing": [of_packing(300, 256), of_packing(40_000, 2048)],
        "plans": {name: of_plan(*given) for name, given in plans().items()},
    }


def main(folder=HERE):
    """0 after writing or when the file already says the same, 1 when it says something else."""
    path = folder / f"order-{ORDER_VERSION}.json"
    text = json.dumps(golden(), indent=1, ensure_ascii=False) + "\n"
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return 0
        print(
            f"{path.name} says something else: the order changed. Raise ORDER_VERSION instead.",
            file=sys.stderr,
        )
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
