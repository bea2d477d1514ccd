"""Text and plots for Dagster's pages: Markdown tables, charts, column schemas."""
