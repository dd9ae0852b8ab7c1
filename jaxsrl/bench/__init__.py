"""Benchmarks: side by side in one run, as ratios against named baselines."""
