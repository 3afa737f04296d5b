"""What the examples and benchmarks share: the exact oracle, matrix files, the Longley data, progress lines."""
