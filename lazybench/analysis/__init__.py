"""Evaluate the records of runs: rows, averages with intervals, paired tests, labels."""
