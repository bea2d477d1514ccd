"""Pictures in a terminal: in cells, or by a protocol that the terminal was asked for."""
