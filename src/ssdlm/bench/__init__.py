"""How fast texts are written, beside the authors' loop and beside what the machine can do."""
