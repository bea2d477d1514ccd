"""The log of a root: entries, the state they make, rules of appending, snapshots, names."""
