"""Optional libraries: which extra of the package brings each.  [extras] -> all that need one"""

from __future__ import annotations

import sys
from pathlib import Path

EXTRAS = {
    "train": ("accelerate", "datasets", "matplotlib", "pyarrow", "tensorboard", "zstandard"),
    "eval": ("mauve", "scipy", "sklearn", "faiss"),
    "harness": ("lm_eval",),
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
    "mlflow": ("mlflow",),
    "ray": ("ray",),
    "s3": ("s3fs",),
}
"""For each extra the modules that it brings."""


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module; None for what is no optional library."""
    library = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if library in modules), None)


def install(module: str) -> str:
    """Return the command that brings a module into the Python that runs."""
    extra = extra_of(module)
    here, python = Path.cwd(), Path(sys.executable or "python3")
    shown = python.relative_to(here) if python.is_relative_to(here) else python
    return f"{shown} -m pip install " + (f"'ssdlm[{extra}]'" if extra else module)


def lacking(module: str, what: str = "this command") -> ValueError:
    """Return the error of something that needs a module which is not installed."""
    return ValueError(f"{what} needs {module}, which is not installed; {install(module)}")
