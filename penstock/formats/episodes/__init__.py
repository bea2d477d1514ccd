"""Importers of robot episodes: MCAP, ROS bags, RLDS, Robomimic."""
