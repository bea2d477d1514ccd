"""The version asset: audit, dataset card, links, lag."""
