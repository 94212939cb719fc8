"""What travels between client and service: shapes, problems and paths that both ends share."""
