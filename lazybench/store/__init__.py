"""Run folders on disk, their journals and locks."""
