"""What every test stands on: shape checking on, one thread a worker unless told, no network."""

import inspect
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Set before anything reads them; subprocesses started by tests inherit all four.
SRC = Path(__file__).resolve().parents[1] / "src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A script's background jobs ignore interrupts, which some tests send.
is_main = threading.current_thread() is threading.main_thread()
if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
import torch  # noqa: E402

NUM_THREADS = int(os.environ["OMP_NUM_THREADS"].split(",")[0])
torch.set_num_threads(NUM_THREADS)

MOST_CHECKED = 4
CALLS: Counter[Any] = Counter()
"""Calls of each function in a test: the types of the first `MOST_CHECKED` are looked at."""

# A GPU machine may have neither; `make setup` always brings both.
if find_spec("jaxtyping") and find_spec("beartype"):
    import jaxtyping
    from jaxtyping import install_import_hook

    check_types = jaxtyping.jaxtyped
    SHAPES = re.findall(r'^    "(\w+)",$', (SRC / "ssdlm" / "shapes.py").read_text(), re.M)
    SHAPED = re.compile(rf"\b({'|'.join(name for name in SHAPES if name != 'Tensor')})\b")

    def check_shapes(*, typechecker: Any) -> Callable[[Any], Any]:
        """Check functions and classes that name shapes; other types are for basedpyright.

        Functions within functions are left alone: at every call each would get a new checker.
        """
        check = check_types(typechecker=typechecker)

        def choose(made: Any) -> Any:
            is_shaped = SHAPED.search(" ".join(map(str, inspect.get_annotations(made).values())))
            if "<locals>" in made.__qualname__ or not is_shaped:
                return made
            return rationed(made, check(made)) if inspect.isfunction(made) else check(made)

        return choose

    def rationed(made: Any, strict: Any) -> Any:
        """Return a function whose first calls in each test are checked, unless it is unchecked."""

        @wraps(made)
        def checked(*args: Any, **options: Any) -> Any:
            CALLS[made] += 1
            is_free = CALLS[made] > MOST_CHECKED or jaxtyping.config.jaxtyping_disable
            return (made if is_free else strict)(*args, **options)

        return checked

    jaxtyping.jaxtyped = check_shapes
    if find_spec("triton"):
        # Triton reads the source, which the hook changes.
        for file in sorted((SRC / "ssdlm" / "ops" / "kernels").glob("[!_]*.py")):
            import_module(f"ssdlm.ops.kernels.{file.stem}")
    names_shapes = [file for file in sorted(SRC.rglob("*.py")) if SHAPED.search(file.read_text())]
    modules = [".".join(file.relative_to(SRC).with_suffix("").parts) for file in names_shapes]
    install_import_hook(modules, "beartype.beartype")


HAS_GPU = torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the default device be the CPU, also on a machine with a GPU, but for tests marked `gpu`.

    There rows and runs agree to the last bit. A hook, for fixtures of a module come before those of
    a test; what a test starts is kept from the GPU as well.
    """
    CALLS.clear()
    if torch.get_num_threads() != NUM_THREADS:  # a test has left more, which starve on busy cores
        torch.set_num_threads(NUM_THREADS)
    with pytest.MonkeyPatch.context() as patch:
        has_kernels = item.get_closest_marker("gpu") or item.get_closest_marker("kernel")
        if HAS_GPU and not has_kernels:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with training, whose tests are the longest: else a worker ends with them, alone."""
    items.sort(key=lambda item: item.path.parent.name != "train")


@pytest.fixture(autouse=True)
def same_numbers_in_every_run() -> None:
    """Seed torch, so that a test draws the same whatever ran before it in its worker."""
    torch.manual_seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of kernels where nothing runs them."""
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("kernel") and not (HAS_GPU or os.environ.get("TRITON_INTERPRET")):
        pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1 (make kernels)")


@pytest.fixture
def unchecked(monkeypatch):
    """The package as users have it: without the tests' own look at every type."""
    if find_spec("jaxtyping"):
        monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
