"""Find the settings with which a method reaches a speedup, and among these the ones of least divergence."""
