"""Who sees whom, told position by position."""

import torch

from ssdlm.denoiser.attention import all_blocks_mask, causal_mask, rotate, rotation


def test_the_mask_says_what_the_words_say():
    blocks = [0, 0, 1, 1, 1, 2]
    table = all_blocks_mask(torch.tensor(blocks))
    L = len(blocks)
    for query in range(2 * L):
        for key in range(2 * L):
            mine, theirs = blocks[query % L], blocks[key % L]
            if query < L:
                expected = key <= query
            elif key < L:
                expected = theirs < mine
            else:
                expected = theirs == mine
            assert table[query, key] == expected, (query, key)


def test_new_tokens_see_all_past_ones():
    assert causal_mask(2, 3, torch.device("cpu")).tolist() == [
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]


def test_rotated_products_depend_on_distance_alone():
    x, y = torch.randn(2, 1, 1, 1, 8).unbind(0)
    near = [rotate(v, rotation(torch.tensor([p]), 8)) for v, p in ((x, 3), (y, 7))]
    far = [rotate(v, rotation(torch.tensor([p]), 8)) for v, p in ((x, 103), (y, 107))]
    torch.testing.assert_close((near[0] * near[1]).sum(), (far[0] * far[1]).sum())
