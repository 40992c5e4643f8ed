"""What is on disk: run folders, their journals, locks, and what has become of each job."""
