"""One run: a method on a model over the records of a task."""
