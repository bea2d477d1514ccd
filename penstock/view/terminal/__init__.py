"""The viewer in a terminal: the pages and keys of the web, by Textual."""
