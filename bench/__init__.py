"""Benchmarks of Seriatim: `python -m bench --help`.

Each suite measures Seriatim, other products and bare baselines in turn within one run, so that
their ratios depend little on the machine.
"""
