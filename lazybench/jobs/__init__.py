"""Plan a sweep, and give each of its jobs a GPU."""
