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
    followers = [other for other in fields if decoder_leader(decoders.get(other)) == leader]
    return (leader, *followers)


def decoder_leader(decoder: Decoder | None) -> str | None:
    """Return the field whose frames the decoder follows; None if it chooses its own, or reads no video."""
    if isinstance(decoder, VideoDecoder):
        return decoder.leader
    return None


def times_field(field: str) -> str:
    """Return the name of the field of a video's frame times."""
    return f"{field}.times"


def video_groups(view: View, decoders: Mapping[str, Decoder]) -> list[Group]:
    """Return the groups of a view's video fields. Raises: InvalidRuntime for an invalid leader or a name clash."""
    groups: dict[Group, None] = {}
    for field in view.fields:
        decoder = decoders.get(field)
        if isinstance(decoder, VideoDecoder):
            _check_names(view, field, decoder)
            _check_leader(view, field, decoder, decoders)
            groups[field_group(field, decoders, view.fields)] = None
    return list(groups)


def _check_names(view: View, field: str, decoder: VideoDecoder) -> None:
    """Raise InvalidRuntime if the field of times is in the view already, or a packet run lacks its packet table."""
    what = f"decode[{field!r}]"
    if decoder.times and times_field(field) in view.fields:
        raise InvalidRuntime(
            f"{what} = video(times=True) makes {times_field(field)!r}, a field that the view selects",
            what=what,
            where=view.version.name,
            given=times_field(field),
        )
    packets = field + SUFFIX
    if is_run(field) and packets not in view.version.fields:
        raise InvalidRuntime(
            f"{field!r} has packets without a container, which are found by {packets!r}, and "
            f"{view.version.name} has no such field: read its bytes with decode={{{field!r}: bytes}}",
            what=packets,
            where=view.version.name,
            given=field,
        )


def _check_leader(view: View, field: str, decoder: VideoDecoder, decoders: Mapping[str, Decoder]) -> None:
    """Raise InvalidRuntime if the field whose frames `field` follows is not read, or follows another field itself."""
    leader = decoder.leader
    if leader is None:
        return
    what = f"decode[{field!r}]"
    if leader not in view.fields:
        raise InvalidRuntime(
            f"{what} = video(at={leader!r}), but the view selects {list(view.fields)}; select it too",
            what=what,
            where="at",
            given=leader,
            accepted=list(view.fields),
        )
    of_leader = decoders.get(leader)
    is_leader = isinstance(of_leader, VideoDecoder) and of_leader.leader is None
    if not is_leader:
        raise InvalidRuntime(
            f"{what} = video(at={leader!r}), but {leader!r} is not read by a loader.video of its own "
            "place; let all follow one field",
            what=what,
            where="at",
            given=leader,
            accepted="a field that follows no other",
        )


def with_tables(view: View, groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose fields all have packet tables in the version."""
    known = set(view.version.fields)

    def has_tables(group: Group) -> bool:
        return all(field + SUFFIX in known for field in group)

    return [group for group in groups if has_tables(group)]
