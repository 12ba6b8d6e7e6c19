"""lm_eval's own command line, with our model known to it: `python -m ssdlm.evaluate.lm_eval`."""

import sys

from ssdlm.evaluate.lm_eval import register


def main() -> None:
    """Register the model and run lm_eval."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate  # pyright: ignore

        cli_evaluate()
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
