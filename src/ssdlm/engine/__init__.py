"""Requests in, texts out.

requests (what to write) -> strategy (how) -> diffusion.sampler -> texts; prompt_files for files
"""
