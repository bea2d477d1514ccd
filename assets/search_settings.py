"""Fields of a dataset that its pipeline indexes for search."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from loader.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Fields to index after each version, with `penstock index`'s own result. Raises: InvalidSpec."""

    like: tuple[str, ...] = ("embedding.npy",)
    """Embeddings to compare, such as `appearance.npy`."""
    words: tuple[str, ...] = ()
    """Texts to search, such as `caption.txt` or `turns.jsonl`."""
    map: bool = False
    """Also make the map of the version's embedding, as `penstock index REF --map` does."""

    def __post_init__(self) -> None:
        # Most pipelines index nothing.
        from loader.dataset.search.field_texts import LINE_FIELDS, TASK_FIELD, is_text_field
        from loader.dataset.search.index_record import default_embedding

        if not self.like and not self.words:
            raise InvalidSpec(
                "Search(like=(), words=()) indexes nothing: name a field, or leave search=None",
                what="like and words",
                where="Search",
                accepted="a field",
            )
        _check("like", self.like, _is_array, "an array (.npy)")
        _check(
            "words",
            self.words,
            is_text_field,
            f"a text: .txt, {', '.join(LINE_FIELDS)} or {TASK_FIELD}",
        )
        # The viewer and --lasso read one map of a version: no other field's would be used.
        if self.map and default_embedding(self.like) is None:
            raise InvalidSpec(
                f"Search(map=True, like={self.like!r}): a map shows a field that ends in embedding.npy or "
                "appearance.npy; name one in like=, or leave map=False",
                what="map",
                where="Search",
                given=self.like,
                accepted="embedding.npy or appearance.npy",
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields to index."""
        return (*self.like, *self.words)


def _is_array(field: str) -> bool:
    return field.endswith(".npy")


def _check(
    name: str,
    fields: Sequence[str],
    is_accepted: Callable[[str], bool],
    accepted: str,
) -> None:
    # A string is a sequence too, and each of its characters would be a field.
    if isinstance(fields, str):
        raise InvalidSpec(
            f"Search({name}={fields!r}): pass a tuple of fields, such as ({fields!r},)",
            what=name,
            where="Search",
            given=fields,
            accepted="a tuple",
        )
    for field in fields:
        if not isinstance(field, str) or not is_accepted(field):
            raise InvalidSpec(
                f"Search({name}={fields!r}): {field!r} is not {accepted}",
                what=name,
                where="Search",
                given=field,
                accepted=accepted,
            )


def check_searchable(
    search: Search,
    outputs: Collection[str],
    dataset: str,
) -> None:
    """Check that a dataset's featurizers make the embeddings. outputs: their fields. Raises: InvalidSpec."""
    for field in search.like:
        if field not in outputs:
            fields = ", ".join(sorted(outputs)) or "none"
            raise InvalidSpec(
                f"{dataset}: search compares the field {field!r}, which no featurizer of the dataset makes; they make "
                f"{fields}. Add Feature(name='appearance'), or name another field",
                what="like",
                where=dataset,
                given=field,
                accepted=sorted(outputs),
            )
