"""Features from machines on groups of columns, and a classifier on them."""
