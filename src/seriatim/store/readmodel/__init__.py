"""Read models: the tables of projections, and how far each of them has come."""
