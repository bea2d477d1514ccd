"""Fit a map once: anchors among a dataset's vectors, their places, and the clusters that they form.

Up to 1,024 anchors are the k-means centres of 50,000 samples, laid out by t-SNE. Anchors form clusters by a second
k-means: the square root of the samples, up to 256, so that a facet can list them.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loader.dataset.tables.parquet import Int64s

from .centres import Floats, find_centres, unit_rows
from .lasso import MAP_UNITS, Places
from .layout import Doubles, layout

MOST_ANCHORS = 1_024
MOST_CLUSTERS = 256
SAMPLED = 50_000
"""Samples from which a map is fitted."""
MARGIN = MAP_UNITS // 32
"""Map units around the anchors that stay empty."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MapFit:
    """Anchors of a map."""

    anchors: Floats
    """float32 [n, numbers], of length 1."""
    x: Places
    """uint16 [n]."""
    y: Places
    """uint16 [n]."""
    clusters: Places
    """uint16 [n]: cluster of each anchor, from 0 without gaps; 0 has the most samples."""
    n_samples: Int64s
    """int64 [n]: sampled samples nearest to each anchor."""

    @cached_property
    def places(self) -> Doubles:
        """float64 [n, 2]."""
        places = np.stack(
            [self.x, self.y],
            axis=1,
        )
        return places.astype(np.float64)

    @cached_property
    def spacing(self) -> Doubles:
        """float64 [n]: mean distance to the three nearest anchors."""
        difference = self.places[:, None] - self.places
        squares = np.square(difference).sum(axis=2)
        squares.sort(axis=1)
        nearest = np.sqrt(squares[:, 1:4])
        if not nearest.size:
            return np.zeros(1)
        spacing: Doubles = nearest.mean(axis=1)
        return spacing

    @cached_property
    def cluster_means(self) -> Floats:
        """float32 [clusters, numbers], of length 1: means of the anchors, weighted by their samples."""
        n_clusters = int(self.clusters.max(initial=0)) + 1
        width = self.anchors.shape[1]
        sums = np.zeros((n_clusters, width), np.float32)
        weight = self.n_samples.astype(np.float32)
        np.add.at(
            sums,
            self.clusters,
            self.anchors * weight[:, None],
        )
        return unit_rows(sums)


def fit_map(vectors: Floats, seed: int = 0) -> MapFit:
    """Return the map of unit vectors, float32 [n, numbers], n from 1 to `SAMPLED`."""
    n_anchors = min(MOST_ANCHORS, len(vectors))
    centres = find_centres(
        vectors,
        n_anchors,
        seed,
    )
    # Anchors weigh by their samples, or else sparse regions would have the largest clusters.
    n_samples = np.bincount(centres.nearest)
    n_clusters = round(math.sqrt(len(vectors)))
    groups = find_centres(
        centres.vectors,
        min(n_clusters, MOST_CLUSTERS),
        seed,
    )
    places = _in_map_units(layout(centres.vectors))
    return MapFit(
        anchors=centres.vectors,
        x=places[:, 0],
        y=places[:, 1],
        clusters=_largest_first(groups.nearest, n_samples),
        n_samples=n_samples,
    )


def _largest_first(clusters: Int64s, n_samples: Int64s) -> Places:
    """Return clusters, int64 [n], numbered by their samples, the largest first."""
    sizes = np.bincount(
        clusters,
        weights=n_samples,
    )
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(len(order), np.uint16)
    rank[order] = np.arange(len(order))
    ranked: Places = rank[clusters]
    return ranked


def _in_map_units(places: Doubles) -> Places:
    """Return uint16 [n, 2]: places, float64 [n, 2], scaled to the map, in the middle, with a margin."""
    low = places.min(axis=0)
    high = places.max(axis=0)
    # One scale for both axes: a stretched layout would change which neighbours are nearest.
    largest = max(np.max(high - low), 1e-9)
    last = MAP_UNITS - 1
    scale = (last - 2 * MARGIN) / largest
    centre = (low + high) / 2
    units = (places - centre) * scale
    units += last / 2
    whole: Places = np.rint(units).astype(np.uint16)
    return whole
