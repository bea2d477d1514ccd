"""What a process does on a small file system: `full_disk.py FOLDER` fills it with a version that does not fit.

Prints what went wrong; ends with 1 where something is half there, or the next version does not get in.
"""

import os
import sys

import loader
from loader.errors import StoreError
from penstock.upkeep.verify.root import verify_root


def main(folder):
    root = loader.Root(f"{folder}/root")
    with root.write("d") as writer:
        writer.add("small", {"x": b"1"})
    told = "nothing"
    try:
        with root.write("d", part_samples=1) as writer:
            for i in range(40):
                writer.add(f"large{i}", {"x": os.urandom(100_000)})
    except (StoreError, OSError) as error:
        told = f"{type(error).__name__}: {error}"
    print(told)
    again = loader.Root(root.url)
    whole = verify_root(again, full=True).problems == [] and len(again.versions("d")) == 1
    # What a collector would delete: the parts of the writer that failed.
    txns = [one.txn for one in again.state.txns.values() if one.status != "committed"]
    for txn in txns:
        again.store.delete_many([info.key for info in again.store.list(f"data/{txn}/")])
    with again.write("d") as writer:
        writer.add("after", {"x": b"2"})
    return 0 if whole and len(txns) == 1 and verify_root(again, full=True).problems == [] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
