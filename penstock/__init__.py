"""The command line, and operations on data that need no Dagster."""
