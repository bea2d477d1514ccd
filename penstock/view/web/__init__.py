"""The viewer in a browser: server-rendered pages, each also JSON under `.json`."""
