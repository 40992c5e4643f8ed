"""What is on disk: run folders, their journals and locks."""
