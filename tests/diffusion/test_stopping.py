"""When a block is done."""

import torch

from ssdlm.diffusion.stopping import never, stable


def certain(tokens, V=8, gap=20.0):
    return gap * torch.nn.functional.one_hot(tokens, V).float()


def test_never_is_never():
    tokens = torch.zeros(3, 4, dtype=torch.long)
    assert not never()([tokens] * 9, certain(tokens)).any()


def test_stable_wants_stillness_and_certainty_of_each_row_by_itself():
    still = torch.tensor([[1, 2], [3, 4], [5, 6]])
    moved = torch.tensor([[1, 2], [3, 0], [5, 6]])
    logits = certain(still)
    logits[2] *= 0.1  # the third row is not sure
    stop = stable(patience=3, confidence=0.9)
    assert stop([still, moved, still], logits).tolist() == [True, False, False]


def test_stable_waits_until_it_has_seen_enough():
    still = torch.tensor([[1, 2]])
    assert not stable(patience=3)([still, still], certain(still)).any()
    assert stable(patience=2)([still, still], certain(still)).all()
