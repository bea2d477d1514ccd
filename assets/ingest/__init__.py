"""The assets of one ingest batch up to its parts: raw_objects, media, units."""
