"""The lifecycle of data as Dagster assets: land, cut into samples, publish a version. One stage per file."""
