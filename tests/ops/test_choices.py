"""Which kernel an operation chooses on a GPU, by stand-ins that do as the plain bodies do.

Without Triton, too: `test_kernels` and `test_dispatch` are about what the kernels themselves do.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.closeness import NETWORK, assert_close

from ssdlm.ops import draws, kernels, rows
from ssdlm.ops.counters import GUMBEL

MANY = 40
"""Rows that the stand-ins call many."""


def few(x: torch.Tensor, *_: Any, **__: Any) -> bool:
    return len(x) < MANY


@pytest.fixture
def used(monkeypatch, unchecked):
    """Stand-ins for kernels; yields the names of those that were used, with their plans."""
    names: list[Any] = []

    def product(x, weight, *, plan=None):
        names.append(("product", plan))
        return F.linear(x, weight)

    def normed_product(x, weight, scale, *, plan, **how):
        names.append(("normed product", plan))
        with monkeypatch.context() as patch:
            patch.setattr(rows, "on_gpu", lambda x: False)
            return rows.normed_product(x.unsqueeze(0), weight, scale, **how)[0]

    def add_product_(x, other, weight, *, plan):
        names.append(("add product", plan))
        return x.add_(F.linear(other, weight))

    def relu_squared_(x):
        names.append("squares")
        return F.relu(x).square()

    def attended(name):
        def attend(qkv, *given):
            names.append(name)
            return qkv[:, :, :2]

        return attend

    def drawn(name):
        def draw(logits, prior, *given):
            names.append((name, bool(prior.any()), int((logits == -torch.inf).sum())))
            return logits.argmax(-1)

        return draw

    stand_ins = {
        "products": SimpleNamespace(
            INVARIANT="invariant", MOST_COLUMNS=100, is_quick=few, takes_normed=few,
            product=product, normed_product=normed_product, add_product_=add_product_,
        ),
        "rows": SimpleNamespace(
            norm=rows.plain_norm, relu_squared_=relu_squared_,
            place_and_attend=attended("attend"), place_and_attend_alone=attended("attend alone"),
        ),
        "draws": SimpleNamespace(draw=drawn("draw"), draw_perturbed=drawn("draw perturbed")),
    }  # fmt: skip
    for name, one in stand_ins.items():
        monkeypatch.setitem(sys.modules, f"ssdlm.ops.kernels.{name}", one)
        monkeypatch.setattr(kernels, name, one, raising=False)
    return names


def both(monkeypatch, work):
    """Return what work gives on a CPU, and as if on a GPU."""
    plain = work()
    with monkeypatch.context() as patch:
        for module in (rows, draws):
            patch.setattr(module, "on_gpu", lambda x: True)
        return plain, work()


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("R", "columns", "is_invariant", "chosen"),
    [
        (3, 64, False, [("product", None)]),
        (MANY, 64, False, []),
        (3, 200, False, []),
        (MANY, 200, True, [("product", "invariant")]),
    ],
    ids=["few rows", "many rows", "many columns", "invariant"],
)
def test_a_product_is_a_launch_where_that_is_quicker_or_asked_for(
    used, monkeypatch, R, columns, is_invariant, chosen
):
    x, weight = normals(1, R, 32), normals(columns, 32)
    plain, found = both(monkeypatch, lambda: rows.product(x, weight, is_invariant=is_invariant))
    assert_close(found, plain, roundings=NETWORK)
    assert used == chosen


@pytest.mark.parametrize("how", [{}, {"is_squared": True}, {"is_gated": True}], ids=str)
@pytest.mark.parametrize("R", [3, MANY])
@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_a_norm_goes_with_its_product_where_rows_are_few(
    used, monkeypatch, how, R, has_more, has_scale
):
    x, weight = normals(1, R, 32), normals(64, 32)
    scale = 1 + normals(32, seed=2) / 4 if has_scale else None
    more = rows.LowRank(normals(4, 32), normals(64, 4), num_rows=2) if has_more else None
    plain, found = both(monkeypatch, lambda: rows.normed_product(x, weight, scale, more, **how))
    assert_close(found, plain, roundings=NETWORK)
    is_whole = R == 3 and not has_more
    assert (("normed product", None) in used) == is_whole
    assert ("squares" in used) == ("is_squared" in how and not is_whole)
    used.clear()
    both(monkeypatch, lambda: rows.normed_product(x, weight, scale, is_invariant=True, **how))
    assert used == [("normed product", "invariant")]


@pytest.mark.parametrize(
    ("R", "is_invariant", "chosen"),
    [
        (3, False, [("add product", None)]),
        (MANY, False, []),
        (MANY, True, [("add product", "invariant")]),
    ],
)
def test_a_sum_goes_with_its_product_where_rows_are_few(used, monkeypatch, R, is_invariant, chosen):
    old, x, weight = normals(1, R, 64, seed=1), normals(1, R, 32), normals(64, 32)
    given = {"is_invariant": is_invariant}
    plain, found = both(monkeypatch, lambda: rows.add_product_(old.clone(), x, weight, **given))
    assert_close(found, plain, roundings=NETWORK)
    assert used == chosen


def test_rows_that_are_to_be_the_same_in_any_company_attend_alone(used, monkeypatch):
    monkeypatch.setattr(rows, "on_gpu", lambda x: True)
    qkv, table = normals(1, 2, 6, 16), normals(1, 2, 9, 16)
    behind = rows.Behind(
        rows.Rows.causal(2, qkv.device), torch.zeros(1).long(), torch.zeros(1).long()
    )
    for is_invariant in (False, True):
        given = {"is_invariant": is_invariant}
        rows.place_and_attend(qkv, table, table, behind, table, None, **given)
    assert used == ["attend", "attend alone"]
    narrow, keys = normals(1, 2, 6, 8), torch.zeros(1, 2, 9, 8)
    angles = torch.cat((torch.ones(9, 1, 8), torch.zeros(9, 1, 8)), 1)
    found = rows.place_and_attend(narrow, keys, keys.clone(), behind, angles, None)
    assert found.shape == (1, 2, 2, 8) and len(used) == 2  # heads that no kernel takes


def test_who_cuts_by_top_k_or_min_p_draws_from_logits_that_are_cut(used, monkeypatch):
    monkeypatch.setattr(draws, "on_gpu", lambda x: True)
    logits, prior = normals(2, 1, 30), normals(30, seed=1)
    whole = torch.tensor([-1, 4]), torch.ones(2), torch.ones(2)
    rest = torch.zeros(2).long(), torch.zeros(2).long(), torch.zeros(2).long()
    cuts = torch.tensor([3, 5]), torch.zeros(2)
    for given in (None, cuts):
        draws.draw(logits, prior, None, *whole, *rest, cuts=given)
        draws.draw_perturbed(logits, prior, *whole, rest[0], torch.zeros(2, 1), GUMBEL, given)
    cut = 30 - 3 + 30 - 5
    assert used[:2] == [("draw", True, 0), ("draw perturbed", True, 0)]
    assert used[2:] == [("draw", False, cut), ("draw perturbed", False, cut)]
