"""Time and memory of a method by prompt length, next to the unmodified model's."""
