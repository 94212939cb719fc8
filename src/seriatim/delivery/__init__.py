"""Delivery: each effect once, whatever crashes, repeats or overtakes."""
