"""The assets of one ingest batch up to parts: raw_objects, media, units."""
