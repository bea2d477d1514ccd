"""Raw objects of other formats: their samples are walked or read, and taken as they are."""
