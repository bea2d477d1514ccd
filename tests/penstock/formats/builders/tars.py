"""Tar archives for tests, made by Python's tarfile in whatever of its formats."""

import io
import tarfile


def tar_bytes(members, format=tarfile.USTAR_FORMAT):
    """An archive of (name, content) pairs, or TarInfo objects without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, encoding="utf-8") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def sample(key, **fields):
    """(name, content) pairs of one sample."""
    return [(f"{key}.{field}", content) for field, content in fields.items()]


def number_samples(tar, n, first=0):
    """Samples of one archive: n of `txt` and `cls`, of different sizes."""
    return [
        member
        for i in range(first, first + n)
        for member in sample(f"{tar}/{i:04}", txt=f"{tar}-{i}".encode() * (i % 7 + 1), cls=str(i).encode())
    ]


JUMPED = ("README", bytes(2**16))
"""A first member that no walk over headers on a disk reads: its archive is not sealed on the way."""


def fill(folder, tars):
    """Write name -> members into a folder, as archives of one time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in tars.items():
        path = folder / name
        path.write_bytes(tar_bytes(members))
        set_time(path)


def set_time(path, second=1_700_000_000):
    """Give a file a time of its last write."""
    import os

    os.utime(path, (second, second))
