"""Jobs: what a run is made of before it starts, where it runs, and what has become of it."""
