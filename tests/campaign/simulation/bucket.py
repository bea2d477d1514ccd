"""A bucket in memory: objects, and writes that are still on their way."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stored:
    """An object. at_us: when it was written, by the store's clock."""

    data: bytes
    etag: str
    at_us: int


@dataclass
class Bucket:
    """objects: as they are. before: as they were some changes ago, for listings that come late; late: writes whose
    answer was an error, and which have not happened yet."""

    objects: dict[str, Stored] = field(default_factory=dict)
    before: dict[str, Stored] = field(default_factory=dict)
    late: list[tuple[str, bytes, bool]] = field(default_factory=list)
    writes: int = 0

    def put(self, key: str, data: bytes, at_us: int) -> None:
        """Create or replace."""
        self._changes()
        self.objects[key] = Stored(data, f'"{self.writes}"', at_us)

    def create(self, key: str, data: bytes, at_us: int) -> bool:
        """Create; False where the key has other bytes."""
        if key in self.objects:
            return self.objects[key].data == data
        self.put(key, data, at_us)
        return True

    def delete(self, key: str) -> None:
        """A key that is not there is no error."""
        if key in self.objects:
            self._changes()
            del self.objects[key]

    def arrive(self, at_us: int) -> None:
        """What was on its way is there now."""
        late, self.late = self.late, []
        for key, data, create_only in late:
            if create_only:
                self.create(key, data, at_us)
            else:
                self.put(key, data, at_us)

    def bytes(self) -> dict[str, bytes]:
        """key -> bytes."""
        return {key: one.data for key, one in self.objects.items()}

    def _changes(self) -> None:
        self.writes += 1
        if self.writes % 7 == 0:  # a state from before, by some changes
            self.before = dict(self.objects)
