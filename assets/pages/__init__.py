"""Pages of Dagster: metadata, columns and plots of stages, the page of a gate, and trainings."""
