"""What lasts: checkpoints, files that are whole or absent, JSON lines, int8, what is built in."""
