"""A dataset with vectors, for the pages that show its map."""

import numpy as np

N = 60
LABELS = ("cat", "dog", "owl")


def write_faces(root, n=N):
    """Publish samples with a vector near one of three means, a label and a number; f/05 has no usable vector."""
    rng = np.random.default_rng(4)
    means = rng.normal(size=(3, 16))
    with root.write("faces", part_samples=20) as writer:
        for i in range(n):
            vector = means[i % 3] + 0.4 * rng.normal(size=16)
            if i == 5:
                vector[:] = 0
            metadata = {"label": LABELS[i % 3], "width": i}
            writer.add(f"f/{i:02d}", {"appearance.npy": vector.astype(np.float16)}, metadata=metadata)
    return root.open("faces@latest")
