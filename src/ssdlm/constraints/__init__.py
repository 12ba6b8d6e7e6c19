"""A denoiser that obeys: words that must or must not appear, fixed tokens, sentences, grammars.

words (from strings to tokens) -> placement (where they stand), automaton and grammars (what may
follow) -> constrained, grammatical (a denoiser around a denoiser)
"""
