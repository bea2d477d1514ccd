"""Raw objects in other formats: their samples are walked or read, and ingested unchanged."""
