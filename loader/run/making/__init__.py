"""One step: fetched, verified, decoded, transformed, collated, substituted."""
