"""Content of a root: the log, shards and their indexes, parts, manifests, versions and views."""
