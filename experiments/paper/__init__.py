"""The experiments of arXiv:1712.07581, and some beside them."""
