"""What must stay true when processes race, stop, die, fork, and lose their connections."""
