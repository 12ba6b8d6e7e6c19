"""What a pass of a decode batch does: a chain of tokens, a window of noise, a tree of guesses."""
