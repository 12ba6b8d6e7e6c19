"""Who sees whom, told position by position."""

import torch
import torch.nn.functional as F
from tests.closeness import assert_close

from ssdlm.denoiser.attention import attend, attend_both, noisy_bias, noisy_mask
from ssdlm.ops.rotary import rotate, rotation


def test_the_mask_says_what_the_words_say():
    blocks = [0, 0, 1, 1, 1, 2]
    table = noisy_mask(torch.tensor(blocks))
    L = len(blocks)
    for query in range(L):
        for key in range(L):
            assert table[query, key] == (blocks[key] < blocks[query]), "clean"
            assert table[query, L + key] == (blocks[key] == blocks[query]), "noisy"


def test_attend_both_is_one_attention_by_a_table_of_who_sees_whom():
    blocks = torch.tensor([0, 0, 1, 1, 1, 2])
    query, key, value = torch.randn(3, 2, 2, 12, 4).unbind(0)
    fast = attend_both(query, key, value, noisy_bias(blocks, torch.float32), len(blocks))
    clean = torch.ones(len(blocks), len(blocks), dtype=torch.bool).tril()
    table = torch.cat((F.pad(clean, (0, len(blocks))), noisy_mask(blocks)))
    assert_close(fast, attend(query, key, value, table))


def test_rotated_products_depend_on_distance_alone():
    x, y = torch.randn(2, 1, 1, 1, 8).unbind(0)
    near = [rotate(v, rotation(torch.tensor([p]), 8)) for v, p in ((x, 3), (y, 7))]
    far = [rotate(v, rotation(torch.tensor([p]), 8)) for v, p in ((x, 103), (y, 107))]
    products = near[0] * near[1]
    # float32 angles of position 107 are right to 107 roundings.
    assert_close(products.sum(), (far[0] * far[1]).sum(), roundings=256, size=products.abs().sum())
