"""Speed as ratios against peers and the machine's own limit, interleaved in one run."""
