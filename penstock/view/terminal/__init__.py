"""The viewer in a terminal, on Textual, with the web's pages and keys."""
