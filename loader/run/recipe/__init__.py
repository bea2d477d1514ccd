"""Everything that decides a batch beside its step: decoders, world, slots, places."""
