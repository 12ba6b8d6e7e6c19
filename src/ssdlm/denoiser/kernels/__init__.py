"""Fused paths for V-wide work, each beside the plain reference that it must agree with."""
