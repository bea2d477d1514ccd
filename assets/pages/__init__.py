"""Text and plots that Dagster shows: Markdown tables, charts, column schemas."""
