"""The E-step: sums over rows and hidden states, by torch (the specification), numba (CPU) or Triton (CUDA)."""
