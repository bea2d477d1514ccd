"""Groups of video fields whose frames are chosen together, by the decoders of a view."""

from collections.abc import Iterable, Mapping, Sequence

from ...dataset.versions.version import View
from ...errors import InvalidRuntime
from ...modalities import Decoder
from ...modalities.video.packet_table import SUFFIX
from ...modalities.video.request import VideoDecoder, is_run

Group = tuple[str, ...]
"""Video fields whose frames are chosen together: the leader, then its followers."""


def field_group(field: str, decoders: Mapping[str, Decoder], fields: Iterable[str]) -> Group:
    """Return the video fields chosen together with `field`, the leader first, or ()."""
    decoder = decoders.get(field)
    if not isinstance(decoder, VideoDecoder):
        return ()
    leader = decoder.leader or field
    rest = (other for other in fields if decoder_leader(decoders.get(other)) == leader)
    return (leader, *rest)


def decoder_leader(decoder: Decoder | None) -> str | None:
    if isinstance(decoder, VideoDecoder):
        return decoder.leader
    return None


def times_field(field: str) -> str:
    return f"{field}.times"


def video_groups(view: View, decoders: Mapping[str, Decoder]) -> list[Group]:
    """Return the groups of a view's video fields. Raises: InvalidRuntime for an invalid leader or a name clash."""
    for field in view.fields:
        decoder = decoders.get(field)
        if isinstance(decoder, VideoDecoder) and decoder.times and times_field(field) in view.fields:
            raise InvalidRuntime(
                f"decode[{field!r}] = video(times=True) makes {times_field(field)!r}, a field that the view selects",
                what=f"decode[{field!r}]",
                where=view.version.name,
                given=times_field(field),
            )
        if isinstance(decoder, VideoDecoder) and is_run(field) and field + SUFFIX not in view.version.fields:
            raise InvalidRuntime(
                f"{field!r} has packets without a container, which are found by {field + SUFFIX!r}, and "
                f"{view.version.name} has no such field: read its bytes with decode={{{field!r}: bytes}}",
                what=field + SUFFIX,
                where=view.version.name,
                given=field,
            )
        leader = decoder_leader(decoder)
        if leader is None:
            continue
        if leader not in view.fields:
            raise InvalidRuntime(
                f"decode[{field!r}] = video(at={leader!r}), but the view selects {list(view.fields)}; select it too",
                what=f"decode[{field!r}]",
                where="at",
                given=leader,
                accepted=list(view.fields),
            )
        if not isinstance(decoders.get(leader), VideoDecoder) or decoder_leader(decoders[leader]) is not None:
            raise InvalidRuntime(
                f"decode[{field!r}] = video(at={leader!r}), but {leader!r} is not read by a loader.video of its own "
                "place; let all follow one field",
                what=f"decode[{field!r}]",
                where="at",
                given=leader,
                accepted="a field that follows no other",
            )
    groups = (field_group(field, decoders, view.fields) for field in view.fields)
    return list(dict.fromkeys(group for group in groups if group))


def with_tables(view: View, groups: Sequence[Group]) -> list[Group]:
    known = set(view.version.fields)
    return [group for group in groups if all(field + SUFFIX in known for field in group)]
