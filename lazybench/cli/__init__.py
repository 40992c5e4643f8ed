"""The commands of `python -m lazybench`."""
