"""Triton bodies of the operations beside. Imported where they run: on a GPU, or interpreted."""
