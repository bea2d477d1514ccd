"""Videos: audited in one decode, cut into clips whose every frame keeps its time."""
