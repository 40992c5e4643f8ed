"""Evaluate the records of runs: rows, averages with intervals, pairs of methods, labels."""
