from __future__ import annotations

import pytest
import torch

from vitling.backbones.kernels import check_outputs, draw_inputs


def test_a_trial_accepts_rounding_and_zeros():
    (x,) = draw_inputs(torch.float32, (4, 8))
    check_outputs([x.bfloat16(), torch.zeros(3)], [x, torch.full((3,), 1e-9)])


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_a_trial_refuses_one_wrong_value(value):
    (x,) = draw_inputs(torch.float32, (4, 8))
    wrong = x.clone()
    wrong[1, 2] += value
    with pytest.raises(RuntimeError, match="wrong results"):
        check_outputs([x, wrong], [x, x])


def test_a_trials_inputs_leave_torchs_random_numbers_alone():
    state = torch.get_rng_state()
    first, second = (draw_inputs(torch.float16, (2, 3), (5,)) for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert [tuple(x.shape) for x in first] == [(2, 3), (5,)]
    assert torch.equal(torch.get_rng_state(), state)
