"""The split product, for long lists: the specification in torch, and the same by Triton."""
