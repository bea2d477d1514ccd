"""Register Parquet in the Hub's layout, in which file names give the splits."""

from loader.dataset.columnar.choices import ColumnarOptions, split_of
from loader.errors import InvalidStore
from loader.storage import ObjectInfo, Store

from ..reading.sample import FoundObjects
from .parquet_registered import objects_with_splits


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return a dataset's Parquet files. Raises: InvalidStore for a `save_to_disk` folder."""
    saved = next((info.key for info in infos if info.key.rpartition("/")[2] == "state.json"), None)
    if saved is not None:
        raise InvalidStore(
            f"{store.url} has a dataset of save_to_disk ({saved}), whose splits are in files of its own: import it "
            "(penstock import hf), save it with to_parquet, or register a split's files (penstock register arrow)"
        )
    return objects_with_splits(store, infos, options, split_of)
