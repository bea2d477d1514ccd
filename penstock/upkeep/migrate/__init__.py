"""Copy a root to a mirror, promote a mirror, and copy plain prefixes."""
