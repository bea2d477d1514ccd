"""A dataset to annotate, and its columns."""


def write(root, numbers, part_samples=None, **more):
    with root.write("d", part_samples=part_samples) as writer:
        for i in numbers:
            writer.add(
                f"k{i}", {"cls": i}, metadata={"label": "a", "w": i, **more}, source={"raw_key": f"r{i // 2}"}
            )
    return writer.version


def column(version, name):
    frame = version.samples().collect()
    return dict(zip(frame["key"].to_list(), frame[name].to_list(), strict=True))


def statistics(version):
    from penstock.upkeep.diff import column_statistics

    return column_statistics(version)
