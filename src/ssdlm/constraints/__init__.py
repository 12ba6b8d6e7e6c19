"""A denoiser that obeys: words that must or must not appear, fixed tokens, whole sentences.

words (from strings to tokens) -> placement (where they stand), automaton (what may follow)
-> constrained (a denoiser around a denoiser)
"""
