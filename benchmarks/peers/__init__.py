"""The software that sbp2p is measured against, started and stopped by the benchmarks."""
