"""Files that a takedown deletes along with a raw object: a ROS bag's messages, LeRobot videos."""

from collections.abc import Collection, Iterator, Mapping

from loader.errors import Corrupt, InvalidSample, InvalidStore, MissingDependency
from loader.storage import Store, is_there, open_store

from ..denied.sources import plain_uri
from .lerobot.dataset_layout import read_layout
from .lerobot.metadata import INFO
from .reading.stated_counts import StatedCounts

_ROWS = ".parquet"
_OF_BAGS = "metadata.yaml"
_FRAGMENT = ".lance"
_UNREADABLE = (Corrupt, InvalidSample, InvalidStore, MissingDependency)


def files_beside(doomed: Mapping[str, Collection[str]], refused: dict[str, str]) -> dict[str, list[str]]:
    """Return raw object URI -> URIs of files that only doomed objects need, each once.

    Costs a listing and the metadata of each dataset.

    doomed: URI of a raw object to delete -> URLs of the sources that may contain it.
    refused: output: object whose files cannot be determined -> reason.
    """
    files = dict[str, list[str]]()
    rows_of = dict[str, dict[str, str]]()
    for uri, places in doomed.items():
        folder, _, name = plain_uri(uri).rpartition("/")
        if name == _OF_BAGS:
            try:
                files[uri] = [f"{folder}/{one}" for one in _messages(open_store(folder, None))]
            except _UNREADABLE as error:
                refused[uri] = f"its files are unknown: {error}"
        if name.endswith(_FRAGMENT) and any(open_store(folder.rpartition("/")[0], None).list("_versions/")):
            refused[uri] = (
                "its dataset of Lance cannot be read without it: delete its rows with Lance, compact, and clean old "
                "versions up"
            )
        # A dataset's root may be several folders above its rows.
        for folder in _parent_folders(plain_uri(uri), places) if uri.endswith(_ROWS) else ():
            rows_of.setdefault(folder, {})[plain_uri(uri).removeprefix(f"{folder}/")] = uri
    for folder, rows in sorted(rows_of.items()):
        store = open_store(folder, None)
        if not is_there(store, INFO):
            continue
        try:
            for data, video in _videos(store, rows):
                files.setdefault(rows[data], []).append(f"{folder}/{video}")
        except _UNREADABLE as error:
            refused |= dict.fromkeys(rows.values(), f"its videos are unknown: {error}")
    return files


def _parent_folders(uri: str, places: Collection[str]) -> Iterator[str]:
    bases = {plain_uri(place).rstrip("/") for place in places}
    folder = uri.rpartition("/")[0]
    while any(folder == base or folder.startswith(f"{base}/") for base in bases):
        yield folder
        folder = folder.rpartition("/")[0]


def _messages(store: Store) -> list[str]:
    from .episodes.rosbag_import import describe_bag  # which imports image decoders

    if not is_there(store, _OF_BAGS):
        return []
    return describe_bag(store, store.head(_OF_BAGS)).names


def _videos(store: Store, doomed: Collection[str]) -> Iterator[tuple[str, str]]:
    infos = list(store.list())
    there = {info.key for info in infos}
    needed: dict[str, set[str]] = {}
    for episode in read_layout(store, infos, StatedCounts(), whole=False).episodes.values():
        for place in episode.videos.values():
            needed.setdefault(place.key, set()).add(episode.data)
    for video, users in sorted(needed.items()):
        users_there = users & there
        # A video may have frames of several episodes: it goes with the last of them.
        if video in there and users_there and users_there <= set(doomed):
            yield max(users_there), video
