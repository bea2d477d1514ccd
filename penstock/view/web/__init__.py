"""The viewer in a browser: server-rendered pages, each a record that `.json` shows plainly."""
