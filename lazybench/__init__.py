"""LazyBench: benchmark methods that prune prompts, on LongBench, LongBench-E, LongBench v2 and RULER."""
