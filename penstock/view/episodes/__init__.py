"""Episodes for the viewer: clocks, streams, cameras and language of one sample."""
