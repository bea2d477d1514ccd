"""Import MCAP files: each is a sample, its topics are fields."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from loader.errors import MissingDependency
from loader.storage import ObjectInfo, Store

from ..importing.importer import ImportRun, Options, Readable, ReadSample
from ..reading.object_file import ObjectFile
from .episode import EpisodeBuilder
from .mcap_messages import mcap_messages

OPTIONS = frozenset[str]()
_ENDING = ".mcap"


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the MCAP files. Raises: MissingDependency without mcap."""
    if find_spec("mcap") is None:
        raise MissingDependency("MCAP files are read by mcap: pip install 'penstock-data[mcap]'")
    files = [info for info in infos if info.key.lower().endswith(_ENDING)]
    return Readable(files, _runs, partial(_samples, store, options))


def _runs(info: ObjectInfo) -> list[ImportRun]:
    return [ImportRun(info, 0, 1, info.nbytes)]


def _samples(store: Store, options: Options, run: ImportRun) -> Iterator[ReadSample]:
    """Yield the one sample of a file."""
    with ObjectFile(store, run.info) as file:
        episode = EpisodeBuilder(file.path, options.without)
        for message in mcap_messages(file, file.path):
            episode.add(message)
    yield episode.sample(run.info.key.rpartition(".")[0])
