"""Open the store of a source, or the store that a batch came from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from loader.errors import StageNotPublished
from loader.storage import Store
from resources.storage import LandingResource

from ..joined_objects import raw_objects_in
from ..sources import Source
from .batch_manifests import read_manifest


def opener(landing: LandingResource) -> Callable[[Source], AbstractContextManager[Store]]:
    """Return a function that opens a source's own store, or the landing resource's if it has none."""

    @contextmanager
    def opened(source: Source) -> Iterator[Store]:
        with landing.opened(source.url, source.options) as place:
            yield raw_objects_in(place, source)

    return opened


@contextmanager
def place_of_batch(
    landing: LandingResource, sources: Sequence[Source], store: Store, dataset: str, batch: str
) -> Iterator[Store]:
    """Yield the store in which a batch was discovered. store: the root's store.

    Raises: InvalidName or ObjectNotFound for an unknown batch; StageNotPublished if no source has the batch's URL.
    """
    opened, urls = opener(landing), []
    if len(sources) == 1:  # the stages compare its URL with the manifest's
        with opened(sources[0]) as place:
            yield place
            return
    manifest = read_manifest(store, dataset, batch)
    for source in sources:
        with opened(source) as place:
            if place.url == manifest.landing:
                yield place
                return
            urls.append(f"{source.name}: {place.url}")
    raise StageNotPublished(
        f"batch {batch} of {dataset} was discovered in {manifest.landing}, and the sources land in "
        f"{', '.join(urls)}: point the landing resource, or a source of the dataset, to those objects"
    )
