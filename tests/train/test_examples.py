"""Random numbers of a row: fused on a GPU, plain elsewhere, the same."""

from __future__ import annotations

import pytest
import torch
from tests.closeness import assert_close

from ssdlm.ops import counters
from ssdlm.train.examples import LEVEL, NOISE, fused_normals, fused_uniforms, normals, uniforms


def test_fused_uniforms_match_the_plain_ones():
    seeds, position = torch.tensor([5, 2**40 + 3]), torch.arange(6)
    stream = torch.tensor([LEVEL * counters.NUM_STREAMS + counters.UNIFORM])
    found = fused_uniforms(seeds.unsqueeze(1), position, torch.zeros_like(stream), stream)
    assert torch.equal(found, uniforms(seeds, LEVEL, 6))


def test_fused_normals_match_the_plain_ones():
    seeds = torch.tensor([5, 2**40 + 3])
    column, position = torch.arange(4).view(1, 1, -1), torch.arange(3).view(1, -1, 1)
    four = fused_normals(seeds, column, position, torch.tensor(0), torch.tensor(0)).view(
        torch.bfloat16
    )
    plain = counters.normal(seeds, block=NOISE, step=0, B=3, V=14)
    assert_close(four[..., :14], plain.bfloat16(), roundings=1)


@pytest.mark.gpu
def test_normals_on_a_gpu_match_those_of_a_cpu(unchecked):  # a checked function is not compiled
    seeds = torch.tensor([5, 2**40 + 3])
    there = normals(seeds.cuda(), 3, 1001)[..., :1001].cpu().float()
    assert torch.allclose(there, normals(seeds, 3, 1001), atol=0.02, rtol=0.01)
