"""What the records of runs say: runs as tables, averages with intervals, paired tests, labels."""
