"""The steps of `seriatim demo`, one module each."""
