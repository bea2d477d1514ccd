"""An episode of a rig: cameras of 24, 30 and 29.97 fps with numbers burnt in, a 1 kHz stream, actions of 50 Hz."""

import json
from fractions import Fraction
from functools import cache

import numpy as np

import loader
from loader.modalities.video.packet_table import index_packets
from tests.run.numbered_video import video

SECONDS = 3
RATES = {"left": Fraction(24), "right": Fraction(30), "wrist": Fraction(30000, 1001)}
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"
STATE_DIMS = ["left_x", "left_y", HOSTILE]


def episode_fields(seconds=SECONDS, cameras=RATES, **more):
    """Fields of an episode."""
    fields = {}
    for name, rate in cameras.items():
        fields[f"cam.{name}.mp4"], fields[f"cam.{name}.mp4.packets"] = film(rate, seconds)
    t = np.arange(seconds * 1000)
    fields["state.npy"] = np.stack([np.sin(t / 300), t / 1000, t % 7], 1).astype(np.float32)
    fields["state.ns.npy"] = t.astype(np.int64) * 10**6
    rows = np.arange(seconds * 50)
    fields["action.npy"] = np.stack([rows, -rows], 1).astype(np.float64)
    fields["action.ns.npy"] = rows.astype(np.int64) * 20 * 10**6
    fields["keep.npy"] = rows % 100 < 75
    lines = [
        {"start_ns": 0, "end_ns": None, "style": "subtask", "role": "user", "text": "reach", "camera": None},
        {
            "start_ns": 10**9,
            "end_ns": None,
            "style": "subtask",
            "role": "user",
            "text": HOSTILE,
            "camera": None,
        },
        {"start_ns": 0, "end_ns": 2 * 10**9, "style": "task", "role": "user", "text": "Stack the cups."},
    ]
    fields["language.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return fields | more


@cache
def film(rate, seconds=SECONDS):
    """(a video of a rate with B-frames, its times in whole milliseconds; its packet table)."""
    n = int(seconds * rate)
    data = video(n, {"g": "8", "bf": "2", "crf": "20"}, pts=[int(k * 1000 / rate) for k in range(n)])
    return data, index_packets(data)


def write_rig(root, episodes=1, **changed):
    """Publish rig@n. changed: fields of the last episode in place of the usual ones."""
    usual = episode_fields()
    facts = {"state.npy": {"dims": STATE_DIMS, "unit": "rad"}}
    with root.write("rig", facts=facts) as writer:
        for number in range(episodes):
            own = changed if number == episodes - 1 else {}
            writer.add(f"ep/{number}", {**usual, **own}, source={"split": "train"})
    return root.open("rig@latest")


def page_windows(
    version, fields=("cam.left.mp4", "cam.right.mp4", "cam.wrist.mp4", "state.npy", "action.npy")
):
    """The windows whose values a page shows: one of each field, by the rule `last`."""
    view = version.select(*fields)
    return loader.windows(view, anchor="action.npy", at={field: [0] for field in fields})
