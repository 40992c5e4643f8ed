"""A method's times next to the unmodified model's and to the time of the work that is left."""
