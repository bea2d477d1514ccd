"""Archives as img2dataset lays them out: of each sample a picture, its caption, and a JSON document of facts."""

import json

IMAGE = b"\xff\xd8\xff picture"


def document(i, **more):
    """Facts of the sample i, which has the key of its number in nine digits."""
    return {
        "url": f"https://example.org/{i}.jpg",
        "caption": f"picture {i}",
        "key": f"{i:09}",
        "status": "success",
        "error_message": None,
        "width": 128 * (1 + i % 4),
        "height": 96,
        "original_width": 4000 + i,
        "nsfw": i % 3 == 0,
        "similarity": 0.25 + i / 1000,
        "exif": {"Make": "x", "Sizes": [1, 2]},
        "sha256": f"{i:064x}",
        **more,
    }


def members(i, facts=None, image=IMAGE):
    """(name, content) of the members of a sample. facts: of `document`, or bytes."""
    facts = document(i) if facts is None else facts
    data = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    key = f"{i:09}"
    return [(f"{key}.jpg", image), (f"{key}.json", data), (f"{key}.txt", f"picture {i}".encode())]


def archives(n, *, each=20, image=IMAGE):
    """Name -> members of archives of n samples."""
    return {
        f"{first // each:05}.tar": [
            one for i in range(first, min(n, first + each)) for one in members(i, image=image)
        ]
        for first in range(0, n, each)
    }


def selected_keys(n):
    """Keys of the samples that `nsfw = false AND width >= 256` selects."""
    return {f"{i:09}" for i in range(n) if i % 3 and 128 * (1 + i % 4) >= 256}
