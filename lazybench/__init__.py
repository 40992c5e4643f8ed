"""LazyBench: one harness, five ways to prune a prompt, sixteen LongBench datasets."""
