"""Import robot episodes: MCAP, ROS bags, RLDS, Robomimic."""
