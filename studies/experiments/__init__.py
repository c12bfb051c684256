"""The paper's benchmarks."""
