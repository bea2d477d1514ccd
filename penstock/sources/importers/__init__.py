"""Formats that are read and cannot be registered, a module for each: `IMPORTERS` lists them."""
