"""The order's golden files: a change leaves them alone, or raises the order's version."""

import hashlib
import json
from pathlib import Path

import pytest

from loader.order.content import ORDER_VERSION
from loader.order.from_json import plan_from_json
from loader.order.sources.views import SyntheticView

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def golden_values():
    return json.loads((GOLDEN / f"order-{ORDER_VERSION}.json").read_text(encoding="utf-8"))


def test_code_gives_the_golden_file(golden_values, regenerate):
    made = json.loads(json.dumps(regenerate.golden()))
    for part in golden_values:
        assert made[part] == golden_values[part], part
    assert made == golden_values


def test_every_order_version_so_far_has_its_file():
    assert {path.name for path in GOLDEN.glob("order-*.json")} == {
        f"order-{v}.json" for v in range(1, ORDER_VERSION + 1)
    }


def test_reference_gives_the_golden_numbers(golden_values, reference):
    for one in golden_values["keys"]:
        seed, *rest = one["fields"]
        assert reference.key(int(seed, 16), *rest) == int(one["key"], 16)
    for a, z in golden_values["mix64"]:
        assert reference.mix64(int(a, 16)) == int(z, 16)
    for k, a, z in golden_values["sub"]:
        assert reference.sub(int(k, 16), int(a, 16)) == int(z, 16)
    for one in golden_values["perm"]:
        assert [reference.perm(int(one["k"], 16), one["n"], x) for x in one["x"]] == one["perm"]
    for one in golden_values["locate"]:
        for epoch, ordinals in enumerate(one["ordinals in epochs 0, 1"]):
            where = (tuple(one["N, c, D, h"]), 7, "photos", epoch)
            assert [reference.locate(*where, i) for i in one["positions"]] == ordinals
    for one in golden_values["tables"]:
        assert [name for name, _ in reference.table(one["weights"])] == one["table"]


def test_reference_gives_the_golden_batches(golden_values, reference):
    for one in golden_values["plans"].values():
        made = one["plan"]
        shapes = {name: (s["n"], s["chunk"], s["lanes"], s["h"]) for name, s in made["sources"].items()}
        segments = [(s["start_step"], s["weights"]) for s in made["segments"]]
        names = sorted(shapes)
        for batch in one["batches"]:
            slots = reference.canonical(
                reference.stream(segments, made["global_batch"], batch["step"]), shapes
            )
            for wanted, part in (
                (batch["first (source, i_k, epoch, ordinal)"], slots[:4]),
                (batch["last"], slots[-4:]),
            ):
                got = []
                for name, position in part:
                    epoch, i = divmod(position, shapes[name][0])
                    ordinal = reference.locate(shapes[name], made["seed"], name, epoch, i)
                    got.append([names.index(name), position, epoch, ordinal])
                assert got == wanted


def test_reference_gives_the_golden_batches_of_buckets(golden_values, reference):
    for one in golden_values["bucketed plans"].values():
        made = one["plan"]
        shapes = {name: (s["n"], s["chunk"], s["lanes"], s["h"]) for name, s in made["sources"].items()}
        sizes = {}
        for name, s in made["sources"].items():
            sizes.setdefault(s["bucket"], {})[name.removesuffix(f"/{s['bucket']}")] = s["n"]
        by = made["bucket_by"]
        segments = [(s["start_step"], s["weights"]) for s in made["segments"]]
        for (_, weights), turns in zip(segments, by["turns"], strict=True):
            assert reference.turn_shares(weights, sizes, by["batch"]) == turns["weights"]
        names = sorted(shapes)
        exact = sum(by["turns"][0]["weights"].values()) < 1000  # the reference's largest tables take minutes
        for batch in one["batches"][: 3 if exact else 0]:
            _, slots = reference.bucket_batch(
                made["seed"], by["batch"], shapes, sizes, segments, batch["step"]
            )
            rows = [[names.index(name), *rest] for name, *rest in slots]
            assert rows[:4] == batch["first (source, i_k, epoch, ordinal)"]
            assert rows[-4:] == batch["last"]


def test_reference_gives_the_golden_quarantine(golden_values, reference):
    made = golden_values["quarantine"]["plan"]
    (one,), ((name, shape),) = made["quarantine"], made["sources"].items()
    bad = {ordinal for ordinal, _ in one["samples"]}
    n, plain = shape["n"], (shape["n"], shape["chunk"], shape["lanes"], shape["h"])
    wanted = []
    for slot, (_, position) in enumerate(
        reference.canonical(reference.stream([(0, {name: 1})], made["global_batch"], 9), {name: plain})
    ):
        epoch, i = divmod(position, n)
        own = ordinal = reference.locate(plain, made["seed"], name, epoch, i)
        attempt = 0
        while ordinal in bad:
            attempt += 1
            drawn = reference.key(made["seed"], name, "substitute", epoch, i, attempt)
            ordinal = (own + 1 + drawn % (n - 1)) % n
        if attempt:
            wanted.append([slot, position, attempt, ordinal])
    assert golden_values["quarantine"]["(slot, i_k, attempt, ordinal) of step 9"] == wanted
    assert max(attempt for _, _, attempt, _ in wanted) > 1


def test_reference_gives_the_golden_quarantine_of_what_came_with_growths(golden_values, reference):
    """Nothing was removed, so a sample's ordinal is the same in every version."""
    made = golden_values["quarantine of what came with growths"]["plan"]
    shapes = {name: (s["n"], s["chunk"], s["lanes"], s["h"]) for name, s in made["sources"].items()}
    first = {name: s["view"].get("first", 0) for name, s in made["sources"].items()}
    size, starts = made["global_batch"], [one["position"] for one in made["grown"]]
    counts = {name: shape[0] for name, shape in shapes.items()}
    written = reference.growth_stream("photos", counts, starts, 17 * size)
    wanted = []
    for step in (2, 9, 11, 12, 16):
        since = [one["samples"] for one in made["quarantine"] if one["start_step"] <= step]
        bad = {ordinal for some in since for ordinal, _ in some}
        numbered = [(*written[p], p) for p in range(step * size, (step + 1) * size)]
        for slot, (view, place) in enumerate(
            reference.canonical([(v, (i, e, p)) for v, e, i, p in numbered], shapes)
        ):
            i, epoch, position = place
            n = shapes[view][0]
            own = at = reference.locate(shapes[view], made["seed"], view, epoch, i)
            attempt = 0
            while at + first[view] in bad:
                attempt += 1
                drawn = reference.key(made["seed"], view, "substitute", epoch, i, attempt)
                at = (own + 1 + drawn % (n - 1)) % n
            if attempt:
                index = sorted(shapes).index(view)
                wanted.append([step, index, slot, position, attempt, at + first[view]])
    assert (
        golden_values["quarantine of what came with growths"]["(step, source, slot, i_k, attempt, ordinal)"]
        == wanted
    )


def test_reference_gives_the_golden_boundary(golden_values, reference):
    one = golden_values["boundary"]
    ((name, shape),) = one["plan"]["sources"].items()
    shape, size = (shape["n"], shape["chunk"], shape["lanes"], shape["h"]), one["plan"]["global_batch"]
    for batch in one["batches"]:
        slots = reference.mask_batch(one["plan"]["seed"], size, name, shape, batch["step"])
        rows = [[0, *slot] for slot in slots]
        assert rows[:4] == batch["first (source, i_k, epoch, ordinal)"]
        assert rows[-4:] == batch["last"]


def test_reference_gives_the_golden_packing(golden_values, reference):
    one = golden_values["packing"][0]
    tokens = [i * 7919 % 613 * (9 if i % 10 == 0 else 1) for i in range(one["documents"])]
    rows = [
        [number, 2 * document, *rest]
        for number, sequence in enumerate(reference.packed(tokens, one["length"]))
        for document, *rest in sequence
    ]
    assert rows[:8] == one["first (sequence, document, start, length)"]
    assert rows[-8:] == one["last"]
    data = b"".join(value.to_bytes(8, "little") for row in rows for value in row)
    assert hashlib.sha256(data).hexdigest() == one["sha256"]


def test_reference_gives_the_golden_batches_of_ramps_and_growths(golden_values, reference):
    for one in (*golden_values["ramped plans"].values(), *golden_values["grown plans"].values()):
        made = one["plan"]
        shapes = {name: (s["n"], s["chunk"], s["lanes"], s["h"]) for name, s in made["sources"].items()}
        segments = [(s["start_step"], s["weights"]) for s in made["segments"]]
        sizes = [s.get("batch", made["global_batch"]) for s in made["segments"]]
        names, grown = sorted(shapes), made.get("grown", [])
        starts = {name: [g["position"] for g in grown if g["source"] == name] for name in names}
        counts = {view: shape[0] for view, shape in shapes.items()}
        written = {
            name: reference.growth_stream(name, counts, starts[name], 100 * 1000) for name in segments[0][1]
        }
        for batch in one["batches"]:
            if batch["step"] > 1000:
                continue  # the reference writes the stream out
            placed = []
            for name, position in reference.stream(segments, sizes, batch["step"]):
                view, epoch, i = written[name][position]
                placed.append((view, position, epoch, i))
            order = reference.canonical([(view, i) for view, _, _, i in placed], shapes)
            rows = []
            for view, i in order:
                found = next(one for one in placed if (one[0], one[3]) == (view, i))
                placed.remove(found)
                where = (shapes[view], made["seed"], view, found[2], i)
                rows.append([names.index(view), found[1], found[2], reference.locate(*where)])
            for wanted, part in (
                (batch["first (source, i_k, epoch, ordinal)"], rows[:4]),
                (batch["last"], rows[-4:]),
            ):
                first = [made["sources"][names[k]]["view"].get("first", 0) for k, *_ in part]
                got = [[k, p, e, ordinal + at] for (k, p, e, ordinal), at in zip(part, first, strict=True)]
                assert got == wanted


def test_reference_gives_the_golden_batches_of_buckets_that_grow_and_ramp(golden_values, reference):
    for one in (
        *golden_values["grown bucketed plans"].values(),
        *golden_values["ramped bucketed plans"].values(),
    ):
        made, sizes, wholes = one["plan"], [], {}
        shapes = {name: (s["n"], s["chunk"], s["lanes"], s["h"]) for name, s in made["sources"].items()}
        grown = {
            name: [g["step"] for g in made.get("grown", []) if g["source"] == name]
            for name in ("photos", "web")
        }
        for segment in made["segments"]:
            held = {}
            for name, s in made["sources"].items():
                source, growth = name.partition("/")[0], s.get("growth", 0)
                stream = f"{source}/{s['bucket']}"
                if s.get("delta"):
                    continue
                wholes.setdefault(stream, [None] * (1 + len(grown[source])))[growth] = name
                if growth == sum(at <= segment["start_step"] for at in grown[source]):
                    held.setdefault(s["bucket"], {})[source] = s["n"]
            sizes.append(held)
        segments = [(s["start_step"], s["weights"]) for s in made["segments"]]
        by = made["bucket_by"]
        ramp = [(0, by["batch"]), *((one["start_step"], one["batch"]) for one in by.get("ramp", []))]
        batches = [
            {label: n for at, changed in ramp if at <= start for label, n in changed.items()}
            for start, _ in segments
        ]
        wanted = reference.bucket_growth(made["seed"], batches, shapes, wholes, segments, sizes, grown, 71)
        names = sorted(shapes)
        for batch in one["batches"]:
            if batch["step"] >= len(wanted):
                continue  # the reference writes the streams out
            rows = [
                [names.index(view), p, epoch, ordinal + made["sources"][view]["view"].get("first", 0)]
                for view, p, epoch, ordinal in wanted[batch["step"]][1]
            ]
            assert rows[:4] == batch["first (source, i_k, epoch, ordinal)"]
            assert rows[-4:] == batch["last"]


def test_golden_plans_and_states_are_still_read(golden_values):
    for quarantined, step in (
        (golden_values["quarantine"], 9),
        (golden_values["quarantine of what came with growths"], 16),
    ):
        made = plan_from_json(
            quarantined["plan"],
            lambda spec: SyntheticView(spec["n"], spec["name"], first=spec.get("first", 0)),
        )
        assert made.hash == quarantined["hash"]
        assert made.check_state(quarantined["state"]) == step
    kinds = ("plans", "ramped plans", "grown plans")
    kinds += ("bucketed plans", "ramped bucketed plans", "grown bucketed plans")
    for one in (
        golden_values["boundary"],
        *(plan for kind in kinds for plan in golden_values[kind].values()),
    ):
        made = plan_from_json(
            one["plan"], lambda spec: SyntheticView(spec["n"], spec["name"], first=spec.get("first", 0))
        )
        assert made.hash == one["hash"]
        assert made.check_state(one["state"]) == one["batches"][1]["step"]


def test_golden_file_is_never_overwritten(tmp_path, regenerate, monkeypatch, capsys):
    path = tmp_path / f"order-{ORDER_VERSION}.json"
    assert regenerate.main(tmp_path) == 0
    assert path.read_bytes() == (GOLDEN / path.name).read_bytes()
    assert regenerate.main(tmp_path) == 0
    path.write_text("{}", encoding="utf-8")
    assert regenerate.main(tmp_path) == 1
    assert "Raise ORDER_VERSION" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "{}"
    monkeypatch.setattr(regenerate, "ORDER_VERSION", ORDER_VERSION + 1)
    assert regenerate.main(tmp_path) == 0
    assert (tmp_path / f"order-{ORDER_VERSION + 1}.json").exists()
