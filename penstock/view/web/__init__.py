"""The viewer in a browser: server-rendered pages, each the record of its address with `.json` behind it."""
