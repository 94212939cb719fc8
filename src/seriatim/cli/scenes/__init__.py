"""The scenes of `seriatim demo`: each shows one promise of the log and checks that it holds."""
