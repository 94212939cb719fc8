"""Examples that run: the steps of `seriatim demo`, one module each, written as user code."""
