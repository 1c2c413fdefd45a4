"""Contenders and scenarios, measured side by side: ``python -m benchmarks NAME``."""
