"""Tensor operations that have a kernel: each is one function with a plain and a Triton body.

[ops] -> diffusion, denoiser -> ...

The body is chosen within the function, by the device of its tensors, so that no algorithm asks. The
Triton bodies are in `ops.kernels`. Tests compare the two, on a GPU and, by Triton's interpreter, on
a CPU (`make kernels`).
"""
