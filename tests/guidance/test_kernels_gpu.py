"""Kernels of guides, on a GPU, against the plain code that they stand for."""

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.denoiser.kernels import nudge_kernels
from ssdlm.guidance import load_guide
from ssdlm.guidance.gradient import SMALLEST, guided
from ssdlm.guidance.growing import GrowingGuide
from ssdlm.guidance.packing import PackedGuide, growing_guide

pytestmark = pytest.mark.gpu


def normals(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).cuda()


class Known:
    """A log-probability with a gradient that is given."""

    def __init__(self, gradient):
        self.gradient = gradient

    def __call__(self, context, logits):
        raise AssertionError("its gradient is known")

    def simplex_gradient(self, context, logits):
        return self.gradient


@pytest.mark.parametrize("V", [1001, 8192, 16000])
@pytest.mark.parametrize("W", [1, 3])
def test_nudges_are_those_of_words_that_stand_out(V, W):
    N, weight, threshold = 5, 5.0, 2.0
    logits, base = 6 * normals(N, W, V), normals(N, W, V, seed=1)
    logits[..., ::5] -= 100  # never drawn
    gradient = normals(N, W, V, seed=2) ** 3
    ids = torch.randint(V, (N, 40), generator=torch.Generator().manual_seed(3)).cuda()
    present = torch.zeros(N, V, dtype=torch.bool).cuda().scatter(1, ids[:, :-1], True)
    active = torch.tensor([1, 0, 1, 1, 1]).cuda()
    most, plain_most = torch.full((2,), -1.0).cuda()
    found = nudge_kernels().add_nudge(
        base, logits, gradient, present, ids[:, -1:].contiguous(), active, most,
        scale=weight, threshold=threshold, smallest=SMALLEST,
    )  # fmt: skip
    plain = guided(tiny.block(), Known(gradient), 1.0, gradient="words", threshold=threshold)
    nudge = plain.nudge_by(plain.log_prob, weight, plain_most, ids, logits)
    assert_close(found, base + nudge, roundings=NETWORK)
    assert_close(most, plain_most, roundings=NETWORK)
    assert (nudge != 0).any(-1).all()
    assert (present.gather(1, ids[:, -1:])[:, 0] | (active == 0)).all()


@pytest.mark.parametrize("kind", ["roberta", "bert"])
@pytest.mark.parametrize("control", ["=positive", "!=neutral"])
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 96, "num_attention_heads": 3}])
def test_a_layer_in_one_launch_has_the_gradient_that_autograd_finds(
    kind, control, problem, sizes, tmp_path
):
    settings = {"num_hidden_layers": 1, "hidden_act": "relu", "problem_type": problem} | sizes
    path = tiny.save_classifier(tmp_path, kind, **settings)
    fitted = load_guide(f"{path}{control}", device="cuda").fit(V=tiny.V)
    N, lengths = 20, [torch.zeros(20, dtype=torch.int64).cuda() for _ in range(2)]
    plain, packed = GrowingGuide(fitted, lengths[0]), growing_guide(fitted, lengths[1])
    assert isinstance(packed, PackedGuide)
    active = (torch.arange(N) % 7 > 0).long().cuda()
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(tiny.V, (N, 1), generator=generator).cuda()
        logits = 3 * normals(N, 1, tiny.V, seed=step)
        for counts in lengths:
            counts.add_(active)
        one = plain.read_and_climb(tokens, active, logits)
        other = packed.read_and_climb(tokens, active, logits)
        is_active = active.bool()
        assert_close(other[is_active], one[is_active], roundings=2 * NETWORK)
        assert_close(packed.seen, plain.seen, roundings=NETWORK)
