"""Near saves for tests: checkpoints whose files lie on several nodes, each part on two of them."""

import shutil

from loader.cache.peers.near_files import near_folder
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.marker import marker_key

PART_BYTES = 4096


def save_state(folder, run, step, state, *, part_bytes=PART_BYTES):
    """Save a state in a root of its own; return the checkpoint and the root's folder."""
    with Checkpoints(str(folder), run, part_bytes=part_bytes) as checkpoints:
        checkpoints.create_root()
        checkpoints.save(step, state)
        return checkpoints.at(step), folder


def distribute(save, nodes, *, copies=2, markers=None):
    """Copy a save's files to nodes: part k to node k and the next ones, the index to the first ones, markers to all."""
    checkpoint, folder = save
    for number, stored in enumerate(checkpoint.objects):
        for copy in range(copies):
            node = nodes[(number + copy) % len(nodes)]
            put(folder / checkpoint.key(stored), node, checkpoint.key(stored))
    for node in nodes if markers is None else markers:
        key = marker_key(checkpoint.run, checkpoint.step)
        put(folder / key, node, key)


def put(source, node, key):
    path = near_path(node, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)


def near_path(node, key):
    """Return the path of a key in a node's near folder."""
    return node.folder / near_folder(node.spec(None)).rpartition("/")[2] / key


def near_checkpoints(root, run, node, nodes, **options):
    """Return the checkpoints of a process on a node."""
    peers = [one.address for one in nodes]
    return Checkpoints(str(root), run, near=node.spec(peers), **options)
