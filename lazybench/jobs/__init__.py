"""A sweep before it starts: what it would do, and a GPU for each of its jobs."""
