"""What measures and checks: benchmarks of the kernels and of the whole pass, the audit."""
