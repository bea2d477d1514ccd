"""Search a version's samples by similarity and by words; the derived segments that make it fast."""
