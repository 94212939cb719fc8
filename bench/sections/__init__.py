"""The parts of the append benchmark: each takes the stage and returns figures."""
