"""The viewer in a browser: server-rendered pages, each also available as JSON under `.json`."""
