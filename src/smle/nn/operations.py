"""Torch's table of row operations (`smle_check.program`): batches on any device, in eager mode or compiled.

Each entry makes the function of one operation of a head. What Python may look at to save passes over numbers is looked
at in eager mode alone. The functions of a program are joined by a printed one, which costs no more than its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smle.nn.clip import clip, eager, has_nan
from smle.nn.gate import RowHeads
from smle_check.program import Op

__all__ = ["joined", "traced"]

Function = Callable[..., Any]
_addmm, _where = torch.addmm, torch.where


def joined(head: nn.Module, ops: Sequence[Op], fmt: str, given: Sequence[str], wanted: Sequence[str]) -> Function:
    """Return the function of given values that runs operations on the tensors of a head, and returns wanted values.

    Args:
        head: The head. Its parts are asked for their tensors in every call, so that it may be moved and loaded.
        ops: What is to run.
        fmt: The format of the features.
        given: Names of the arguments: values, or tensors in the place of those of the head.
        wanted: Names of what is returned, None for what is not there; one alone is not a tuple.
    """
    functions = [TABLE[op.kind](head, op) for op in ops]
    made = {name: f"given{i}" for i, name in enumerate(given)} | {op.out: f"value{i}" for i, op in enumerate(ops)}
    names: dict[str, Any] = {f"function{i}": function for i, function in enumerate(functions)}

    def text(name: str | None) -> str:
        if name is None or name in made:
            return "None" if name is None else made[name]
        own, key = _place(head, name, fmt)
        part = f"tensors{len(names)}"
        names[part] = own
        return f"{part}['{key}']"

    calls = [f"value{i} = function{i}({', '.join(map(text, op.args))})" for i, op in enumerate(ops)]
    result = ", ".join(made.get(name, "None") for name in wanted)
    lines = [f"def program({', '.join(made[name] for name in given)}):", *calls, f"return {result}"]
    exec(compile("\n    ".join(lines), "<operations of a head>", "exec"), names)  # noqa: S102 - calls, and nothing else
    return names["program"]  # type: ignore[no-any-return]


def traced(head: nn.Module, ops: Sequence[Op], fmt: str, given: Sequence[str], wanted: Sequence[str]) -> Function:
    """Return what `joined` returns, for compilers, which look into functions and cannot print them."""

    def program(*arguments: Any) -> Any:
        env: dict[str, Any] = dict(zip(given, arguments, strict=True))
        for op in ops:
            values = []
            for name in op.args:
                if name is None or name in env:
                    values.append(None if name is None else env[name])
                else:
                    own, key = _place(head, name, fmt)
                    values.append(own[key])
            env[op.out] = TABLE[op.kind](head, op)(*values)
        found = tuple(env.get(name) for name in wanted)
        return found[0] if len(found) == 1 else found

    return program


def _place(head: nn.Module, name: str, fmt: str) -> tuple[dict[str, Any], str]:
    """Return where a tensor is: the buffers of a part of the head, and the name there."""
    *path, last = name.replace("_F", f"_{fmt}").split(".")
    part: Any = head
    for step in path:
        part = part._modules[step]
    return part._buffers, last


def _clamp(head: nn.Module, op: Op) -> Function:
    return clip


def _single(head: nn.Module, op: Op) -> Function:
    return Tensor.float


def _wide(head: nn.Module, op: Op) -> Function:
    return Tensor.double


def _active(head: nn.Module, op: Op) -> Function:
    gate: Any = head._modules["gate"]
    evaluate = gate.inside if gate.is_single else gate.active
    return lambda x, wide, *constants: evaluate(x, wide)


def _cell(head: nn.Module, op: Op) -> Function:
    gate: Any = head._modules["gate"]
    if gate.is_single:
        places = gate.inside_outside
        return lambda bits, signatures: RowHeads(bits, places)
    return lambda bits, signatures: gate.cell(bits)


def _hidden(head: nn.Module, op: Op) -> Function:
    return lambda v, weight, bias: torch.relu(_addmm(bias, v, weight.T))


def _affine(head: nn.Module, op: Op) -> Function:
    return lambda v, slope, offset: _addmm(offset, v, slope.T)


def _clip(head: nn.Module, op: Op) -> Function:
    return clip if op.fixed == "where" else torch.clamp


def _affine_at(head: nn.Module, op: Op) -> Function:
    return _picked


def _picked(
    cell: Tensor | RowHeads | None, v: Tensor, weight: Tensor, bias: Tensor, x: Tensor | None, slope: Tensor | None,
    z: Tensor | None, free_weight: Tensor | None, free_bias: Tensor | None,
) -> Tensor:  # fmt: skip
    count, m, n = weight.shape
    # Outputs are few and rows are many: (heads * m, batch) is the faster way round.
    y = _addmm(bias.reshape(count * m, 1), weight.reshape(count * m, n), v.T)
    if slope is not None and x is not None:
        y = _addmm(y, slope.reshape(count * m, -1), x.T)
    if cell is None:
        return y.T
    choices: Sequence[Tensor] = (y,) if count == 1 else torch.split(y, m)
    if free_weight is not None and free_bias is not None and z is not None:
        choices = (*choices, _addmm(free_bias.unsqueeze(1), free_weight, z.T))
    if isinstance(cell, Tensor):
        return torch.stack(list(choices))[cell, :, torch.arange(len(cell), device=cell.device)]
    yes, no = cell.inside_outside
    return _where(cell.inside, choices[yes], choices[no]).T


def _or_fallback(head: nn.Module, op: Op) -> Function:
    has_free = head._modules.get("free") is not None

    def or_fallback(y: Tensor, cell: Tensor | RowHeads | None, fallback: Tensor) -> Tensor:
        if eager(y) and not has_nan(y):
            return y
        if has_free:  # where nothing is claimed
            fallback = torch.cat([fallback, torch.full_like(fallback[:1], torch.nan)])
        if isinstance(cell, Tensor):
            fallback = fallback[cell]
        elif cell is not None:
            yes, no = (fallback[number] for number in cell.inside_outside)
            fallback = _where(cell.inside.unsqueeze(1), yes, no)
        return _where(y.isnan().any(dim=1, keepdim=True), fallback, y)

    return or_fallback


TABLE: dict[str, Callable[[nn.Module, Op], Function]] = {
    "clamp": _clamp,
    "single": _single,
    "wide": _wide,
    "active": _active,
    "cell": _cell,
    "hidden": _hidden,
    "affine": _affine,
    "clip": _clip,
    "affine_at": _affine_at,
    "or_fallback": _or_fallback,
}
