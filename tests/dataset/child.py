"""What the processes of forks.py do to a root, by what it is called:

write      root.write with three parts of two samples, keys NAME0..NAME5
group      add_group NAME to the newest version

A job says the version's number.
"""

import loader


def write(root, name):
    with root.write("d", part_samples=2) as writer:
        for i in range(6):
            writer.add(f"{name}{i}", {"cls": i})
    return writer.version


def group(root, name):
    return root.add_group("d", name, {f"{name}.txt": lambda sample: str(sample["cls"])})


def run(what, url, options, name):
    root = loader.Root(url, options=options)
    return {"write": write, "group": group}[what](root, name).number
