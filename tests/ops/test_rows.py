"""Products of rows on a CPU: to the bit what each text is alone."""

import pytest
import torch

from ssdlm.ops import rows
from ssdlm.ops.rows import Rows, is_row_invariant, ragged_product, tried_row_invariance


def matrix(*shape):
    """Return a matrix as a CPU multiplies it fastest: its columns lie together."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return weight.t().contiguous().t()


@pytest.fixture
def weight():
    weight = matrix(96, 32)
    if not is_row_invariant(weight):
        pytest.skip("products of this machine depend on the number of rows; texts go one by one")
    return weight


@pytest.mark.parametrize("R", [1, 2, 3, 9, 25])
def test_rows_are_to_the_bit_what_they_are_alone(weight, R):
    x = torch.randn(40, R, 32, generator=torch.Generator().manual_seed(R))
    together = ragged_product(x, weight, is_single=False)
    for text, found in zip(x.split(1), together, strict=True):
        assert torch.equal(ragged_product(text, weight, is_single=False)[0], found)
    torch.testing.assert_close(together, x @ weight.T)


@pytest.mark.parametrize(
    ("N", "R", "is_single", "sizes"),
    [
        (5, 25, False, [50, 50, 25]),
        (1, 100, False, [100]),
        (2, 100, False, [100, 100]),
        (1, 1, False, [2]),  # taken twice
        (3, 1, False, [3]),
        (3, 1, True, [1, 1, 1]),
        (65, 1, False, [64, 2]),
    ],
)
def test_no_product_has_more_rows_than_were_tried(weight, monkeypatch, N, R, is_single, sizes):
    seen, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(rows.F, "linear", lambda x, w: seen.append(len(x)) or linear(x, w))
    found = ragged_product(torch.randn(N, R, 32), weight, is_single=is_single)
    assert seen == sizes
    assert found.shape == (N, R, 96)


@pytest.mark.parametrize("num", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [3, 9, 48])
def test_where_rows_lie_in_memory_changes_nothing(size, num):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, size, generator=generator)
    x = torch.randn(1, num, size, generator=generator)
    expected = ragged_product(x, weight, is_single=False)
    for offset in range(1, 16):
        elsewhere = torch.cat((torch.zeros(offset), x.flatten()))[offset:].view(x.shape)
        assert torch.equal(ragged_product(elsewhere, weight, is_single=False), expected)


def test_a_product_whose_sums_depend_on_the_number_of_rows_is_found_out(monkeypatch):
    def by_halves(x, weight):
        """Sum in another order when there are many rows."""
        if len(x) < 20:
            return (x.unsqueeze(1) * weight).sum(-1)
        return x[:, :16] @ weight[:, :16].T + x[:, 16:] @ weight[:, 16:].T

    facts = (24, 32), (32, 1), torch.float32, torch.get_num_threads()
    tried = tried_row_invariance.__wrapped__
    monkeypatch.setattr(rows.F, "linear", lambda x, weight: (x.unsqueeze(1) * weight).sum(-1))
    assert tried(*facts)
    monkeypatch.setattr(rows.F, "linear", by_halves)
    assert not tried(*facts)


def test_rows_behind_tokens_of_the_same_pass_see_them_all():
    window = Rows.window(2, torch.device("cpu"))
    both = window.after(3)
    assert both.offsets.tolist() == [0, 1, 2, 3, 3, 4]
    assert both.sees[:3, :3].tolist() == torch.ones(3, 3).tril().bool().tolist()
    assert not both.sees[:3, 3:].any()
    assert both.sees[3:, :3].all()
    assert both.sees[3:, 3:].tolist() == window.sees.tolist()
