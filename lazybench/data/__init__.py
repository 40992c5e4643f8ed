"""Where records come from: LongBench itself, or a generated sample in its format."""
