"""Who takes part: one module per library, and `NAME.txt`, all that its environment holds beside the project's."""
