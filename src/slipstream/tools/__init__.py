"""What measures: benchmarks of the kernels and of the whole pass."""
