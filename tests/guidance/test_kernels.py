"""Kernels of guides, on a GPU or interpreted, against the plain code that they stand for."""

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.guidance import load_guide
from ssdlm.guidance.growing import GrowingGuide
from ssdlm.guidance.packing import PackedGuide

pytest.importorskip("triton")
pytestmark = pytest.mark.kernel
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normals(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE)


@pytest.mark.parametrize("kind", ["roberta", "bert"])
@pytest.mark.parametrize("control", ["=positive", "!=neutral"])
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 96, "num_attention_heads": 3}])
def test_a_layer_in_one_launch_has_the_gradient_that_autograd_finds(
    kind, control, problem, sizes, tmp_path
):
    settings = {"num_hidden_layers": 1, "hidden_act": "relu", "problem_type": problem} | sizes
    path = tiny.save_classifier(tmp_path, kind, **settings)
    fitted = load_guide(f"{path}{control}", device=DEVICE).fit(V=tiny.V)
    N, lengths = 20, [torch.zeros(20, dtype=torch.int64).to(DEVICE) for _ in range(2)]
    plain, packed = GrowingGuide(fitted, lengths[0]), PackedGuide(fitted, lengths[1])
    active = (torch.arange(N) % 7 > 0).long().to(DEVICE)
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(tiny.V, (N, 1), generator=generator).to(DEVICE)
        logits = 3 * normals(N, 1, tiny.V, seed=step)
        for counts in lengths:
            counts.add_(active)
        one = plain.read_and_climb(tokens, active, logits)
        other = packed.read_and_climb(tokens, active, logits)
        is_active = active.bool()
        assert_close(other[is_active], one[is_active], roundings=2 * NETWORK)
        assert_close(packed.seen, plain.seen, roundings=NETWORK)
