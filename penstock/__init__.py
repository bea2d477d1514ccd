"""The command line and the life of bytes without Dagster."""
