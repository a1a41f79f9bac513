"""Benchmarks. A package with this file, as others install folders of the same name."""
