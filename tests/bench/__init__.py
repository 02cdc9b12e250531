"""Benchmarks that anybody can run beside another proxy on the same machine."""
