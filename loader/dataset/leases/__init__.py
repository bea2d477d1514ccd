"""Leases of readers and heartbeats of writers: signs that somebody still uses an object."""
