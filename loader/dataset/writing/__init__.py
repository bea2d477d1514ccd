"""Files of a change before it is published: parts, groups, exclusions, redactions."""
