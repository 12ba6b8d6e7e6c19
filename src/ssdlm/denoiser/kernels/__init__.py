"""Fused paths for V-wide work, each beside the plain twin that it must agree with."""
