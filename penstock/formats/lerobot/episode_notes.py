"""Notes of an import's summary: parts of episodes that it leaves out."""

import threading

from ...units import shorten_list


class EpisodeNotes:
    """Notes with the episodes that they are about; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes: dict[str, set[int]] = {}

    def add(self, note: str, episode: int) -> None:
        """Add an episode to a note. A repeated one counts once: an import may read an episode twice."""
        with self._lock:
            self._episodes.setdefault(note, set()).add(episode)

    def lines(self) -> list[str]:
        """Return each note with its first episodes."""
        with self._lock:
            return [
                f"{note} (episodes {shorten_list(sorted(episodes))})"
                for note, episodes in sorted(self._episodes.items())
            ]
