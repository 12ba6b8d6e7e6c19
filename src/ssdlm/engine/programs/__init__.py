"""What a pass of a decode batch does: a chain of tokens, guesses at one, a window of noise."""
