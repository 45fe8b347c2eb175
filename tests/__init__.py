"""Tests: they mirror the packages; `e2e`, `chaos`, `bench` and `conformance` look at the whole."""
