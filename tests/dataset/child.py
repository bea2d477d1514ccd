"""What the processes of forks.py do to a root, by what it is called:

write      root.write with three parts of two samples, keys NAME0..NAME5
publish    begin, two write_part, publish: keys NAME0..NAME3
group      add_group NAME to the newest version

A job says the version's number. One with `at` kills itself at that verb of the store.
"""

import loader
from loader.dataset.log.log import Log
from tests.mortal_store import Death


def write(root, name):
    with root.write("d", part_samples=2) as writer:
        for i in range(6):
            writer.add(f"{name}{i}", {"cls": i})
    return writer.version


def publish(root, name):
    txn = root.begin("d")
    parts = [
        loader.write_part(root, txn, [(f"{name}{i}", {"cls": i}) for i in some], name=f"{k:05d}")
        for k, some in enumerate(((0, 1), (2, 3)))
    ]
    return root.publish("d", parts)


def group(root, name):
    return root.add_group("d", name, {f"{name}.txt": lambda sample: str(sample["cls"])})


def run(what, url, options, name, at=0, when="before"):
    root = loader.Root(url, options=options)
    if at:
        root.store = Death(at, when).of(root.store)
        root._log = Log(root.store)
    return {"write": write, "publish": publish, "group": group}[what](root, name).number
