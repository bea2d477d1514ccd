"""The settings that decide a batch beside its step: decoders, world, slots, places."""
