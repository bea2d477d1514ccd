"""What is done to the media themselves: what a file is, whether it is whole, how samples are cut from it."""
