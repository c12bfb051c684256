"""The clip of training: values of the clip, gradients that never leave a unit stuck."""

import torch

from smle.nn.bounds import attentive_clip


def test_values_and_gradients():
    z = torch.tensor([-3.0, -3.0, 0.5, 0.5, 3.0, 3.0], requires_grad=True)
    lower, upper = torch.full((6,), -1.0, requires_grad=True), torch.full((6,), 1.0, requires_grad=True)
    gradient = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    y = attentive_clip(z, lower, upper)
    assert y.tolist() == [-1.0, -1.0, 0.5, 0.5, 1.0, 1.0]
    y.backward(gradient)
    # Below the box only a wish to rise comes through, above it only a wish to fall; inside everything.
    assert z.grad.tolist() == [0.0, -1.0, 1.0, -1.0, 1.0, 0.0]
    # The bounds get the true gradient of the clip.
    assert lower.grad.tolist() == [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert upper.grad.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, -1.0]


def test_bounds_shared_by_a_batch_add_up():
    z = torch.tensor([[-2.0, 0.0], [-2.0, 5.0]], requires_grad=True)
    lower, upper = torch.tensor([-1.0, -1.0], requires_grad=True), torch.tensor([1.0, 1.0], requires_grad=True)
    attentive_clip(z, lower, upper).sum().backward()
    assert lower.grad.tolist() == [2.0, 0.0]
    assert upper.grad.tolist() == [0.0, 1.0]


def test_a_unit_that_is_clipped_for_every_row_comes_back():
    z = torch.nn.Parameter(torch.tensor([9.0]))
    optimizer = torch.optim.SGD([z], lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        ((attentive_clip(z, torch.tensor([-1.0]), torch.tensor([1.0])) - 0.25) ** 2).sum().backward()
        optimizer.step()
    assert abs(float(z.detach()) - 0.25) < 1e-3
