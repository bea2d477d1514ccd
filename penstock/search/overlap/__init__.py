"""Find the texts of protected versions, such as evaluation questions, in other versions."""
