"""The settings that, with the step, decide a batch: decoders, world, slots, addresses."""
