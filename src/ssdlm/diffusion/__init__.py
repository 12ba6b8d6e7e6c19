"""The paper: how text becomes noise, and how it comes back.

schedule, simplex -> noising              the forward process (section 3.1)
noise -> [ denoiser -> projection -> step ] x T -> block    the decoding loop (Algorithm 2)
loss                                      what training minimises (Algorithm 1)
likelihood                                what a text is worth in nats; not in the paper
"""
