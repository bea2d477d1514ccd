"""Publish a version and print the hash of a plan over it: python outage_publish.py"""

import numpy as np

import loader

root, rng = loader.Root(), np.random.default_rng(0)
with root.write("people", part_samples=50) as writer:
    for i in range(400):
        face = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        writer.add(f"{i:04d}", {"face.npy": face, "cls": i % 10}, source={"subject": f"person-{i % 40}"})
print(loader.plan({"people": root.open("people@latest")}, seed=7, global_batch=8).save(root))
