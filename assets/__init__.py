"""The lifecycle of data as Dagster assets: land, cut into samples, publish. One stage per file."""
