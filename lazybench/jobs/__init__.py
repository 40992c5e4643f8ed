"""A sweep before it starts: what it would do, and what its cluster and GPUs need."""
