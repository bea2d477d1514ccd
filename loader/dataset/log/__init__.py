"""The log of a root: entries, the state they make, the rules of appending, snapshots, names."""
