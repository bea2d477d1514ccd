"""A takedown in the middle of a run that decides its steps: lists, packed tables, plans and decisions."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.dataset.log.denies import Target
from tests.proxy_stores import ProxyStore
from tests.servers.patience import PATIENCE_S

SECRET = "ZQALICEZQ"
PACK = loader.pack("tokens.npy", 16, lengths="n_tokens")


def publish(root, number, subject="bob", env="sums"):
    """A version more, of four documents."""
    with root.write("rl", part_samples=2) as writer:
        for document in range(4 * number, 4 * number + 4):
            writer.add(
                f"doc{document}",
                {"tokens.npy": np.arange(5 + number)},
                {"n_tokens": 5 + number, "env": env},
                {"subject": subject if document % 4 == 1 else "carol"},
            )
    return writer.version


def decide(root, step, before, env="sums"):
    """Store list, packed table, plan and record of a step on the newest four documents; return the plan's hash."""
    version = root.open("rl@latest")
    n = len(version)
    documents = loader.listed(version.select("tokens.npy"), range(n - 4, n))
    plan = loader.plan(
        {"rollouts": documents}, seed=1, global_batch=2, boundary="mask", pack=PACK, first_step=step
    )
    plan_hash = plan.save(root)
    counts = {"groups": 1, "sequences": 2, "trained": 4, "stale": 0, "small": 0, "by": [[env, 0, 4, 0]]}
    record = {
        "format": 2,
        "run": "math",
        "step": step,
        "steps": 1,
        "before": before or plan_hash,
        "plan": plan_hash,
        "policy": step,
        "asked": {"ref": "rl@latest"},
        "cursor": {"version": version.id, "parts": n // 2, "last": "x", "left": []},
        "counts": counts,
    }
    root.store.put(f"follows/math/{step:019d}.json", json.dumps(record).encode())
    return plan_hash


def names(root, folder):
    return sorted(Path(info.key).stem for info in root.store.list(folder))


def deny(root):
    return root.log.deny((Target(kind="subject", value=SECRET),), "ticket 12", "privacy desk").n


@pytest.fixture
def decision_root(root):
    """Three decisions; the second version has a document of the secret subject, and so has the third."""
    plans = []
    for step, subject in enumerate(("bob", SECRET, "bob")):
        publish(root, step, subject)
        plans.append(decide(root, step, plans[-1] if plans else ""))
    return root, plans


def test_takedown_removes_plans_lists_and_packs_of_versions_that_held_the_document(kit, decision_root):
    root, plans = decision_root
    untouched = loader.open_plan(root, plans[0])
    (kept_list,) = [name for name in names(root, "lists/") if name in json.dumps(untouched.to_json())]
    n = deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert names(root, "plans/") == [plans[0], f"{plans[0]}.start"]
    assert names(root, "lists/") == [kept_list]
    assert len(names(root, "packs/")) == 1
    assert len(names(root, "follows/")) == 3, "decisions stay: the run goes on by their positions"
    assert kit.prove(root, n)["result"] == "complete"
    assert kit.found(root, SECRET, "doc5") == []

    # The run goes on with the next decision, and its own plans stay.
    publish(root, 3)
    following = decide(root, 3, plans[-1])
    assert loader.open_plan(root, following).hash == following
    kit.take_down(root, n)
    kept = [plans[0], following]
    assert names(root, "plans/") == sorted([*kept, *(f"{plan}.start" for plan in kept)])
    assert kit.prove(root, n)["result"] == "complete"


def test_takedown_takes_a_denied_name_from_a_decision(kit, root):
    """A run that names its environments by people: only the name goes."""
    publish(root, 0, SECRET, env=f"home of {SECRET}")
    decide(root, 0, "", env=f"home of {SECRET}")
    n = deny(root)
    path = f"follows/math/{0:019d}.json"
    before = json.loads(root.store.get(path).data)
    kit.take_down(root, n)
    kit.sweep(root)
    after = json.loads(root.store.get(path).data)
    ((env, *numbers),) = after["counts"].pop("by")
    before["counts"].pop("by")
    assert SECRET not in env
    assert numbers == [0, 4, 0]
    assert after == before
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.parametrize("folder", ["plans/", "packs/", "follows/"])
def test_takedown_reads_many_objects_of_a_folder_at_once(kit, root, folder):
    """Eight reads wait for one another: a reader that takes one at a time would never come to the end."""
    publish(root, 0, SECRET)
    publish(root, 1)
    for step in range(16):
        version = root.open("rl@1")
        documents = loader.listed(version.select("tokens.npy"), [step % 4, (step + 1) % 4])
        plan = loader.plan(
            {"d": documents}, seed=step, global_batch=1, boundary="mask", pack=PACK, first_step=step
        )
        plan.save(root)
        for number in range(4):  # a pack of each of 16 lengths
            documents.packed(loader.pack("tokens.npy", 16 + step, lengths="n_tokens", pad_id=number))
        root.store.put(f"follows/math/{step:019d}.json", b'{"format": 1}')
    n = deny(root)
    inner = root.store
    together = threading.Barrier(8, timeout=PATIENCE_S)
    waits = list(range(8))

    def get(store, key, *arguments, **options):
        if key.startswith(folder) and waits:
            waits.pop()
            together.wait()
        return store.get(key, *arguments, **options)

    root.store = ProxyStore(inner, get=get)
    kit.take_down(root, n)
    assert not waits
