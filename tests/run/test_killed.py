"""A training that is killed by SIGKILL, again and again, and goes on at another world size."""

import json
import random
import subprocess
import sys

import loader

TRAIN = """
import json, os, sys, time
import loader

url, plan_hash, folder, world_size, steps, most = sys.argv[1:4] + [int(one) for one in sys.argv[4:]]
plan = loader.open_plan(loader.Root(url), plan_hash)
ranks = [
    loader.Loader(plan, rank, world_size, framework="numpy", workers=1, steps=steps)
    for rank in range(world_size)
]
weight = 0
if os.path.exists(folder + "/checkpoint"):
    with open(folder + "/checkpoint") as file:
        saved = json.load(file)
    weight = saved["weight"]
    for rank in ranks:
        rank.load_state_dict(saved["loader"])
for number, batches in enumerate(zip(*ranks), 1):
    digest = sum(batch.digest for batch in batches) % 2**64
    weight = (weight * 6364136223846793005 + digest) % 2**64
    with open(folder + "/log", "a") as log:
        log.write(f"{batches[0].step} {digest}\\n")
    with open(folder + "/checkpoint.tmp", "w") as file:
        json.dump({"weight": weight, "loader": ranks[0].state_dict()}, file)
    os.replace(folder + "/checkpoint.tmp", folder + "/checkpoint")
    print(batches[0].step, flush=True)
    if number == most:
        time.sleep(600)  # it is killed here at the latest, or a fast machine were done before
for rank in ranks:
    rank.close()
print("done", flush=True)
"""


def test_training_killed_and_resumed_equals_one_that_was_not(tmp_path, samples, properties):
    steps, chance = 24, random.Random(20261120)
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(40), part_samples=9, fields=("cls", "x.npy"))
    plan = loader.plan({"photos": version}, seed=9, global_batch=8)
    plan.save(root)
    wanted = properties.reference_digests(plan, steps)
    kills, done = 0, False
    for world_size in [8, 2, 5, 3, 8, 1, 1]:
        survives = chance.randrange(1, 6) if kills < 6 else steps + 2
        numbers = world_size, steps, survives + 1
        command = [sys.executable, "-c", TRAIN, root.url, plan.hash, str(tmp_path), *map(str, numbers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for lines, line in enumerate(process.stdout, 1):
                done = line == "done\n"
                if lines == survives and not done:
                    process.kill()
                    kills += 1
                    break
        if done:
            assert process.returncode == 0
            break
    assert done
    assert kills >= 4
    logged = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    assert {step for step, _ in logged} == set(range(steps))
    assert all(wanted[step] == digest for step, digest in logged)
    weight = 0
    for step in range(steps):
        weight = (weight * 6364136223846793005 + wanted[step]) % properties.MODULUS
    checkpoint = json.loads((tmp_path / "checkpoint").read_text())
    assert checkpoint["weight"] == weight
    assert checkpoint["loader"] == plan.state(steps)
