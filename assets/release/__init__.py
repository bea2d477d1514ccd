"""The version asset: gate run, dataset card, links, lag."""
