"""Data for the explorer in the browser: the deployed head as the kernel's list of operations, with its numbers.

A network is embedded as float32 numbers (base64). For other models, and networks too large for the page, readers of a
head of rules enter the model's answer themselves; a box then has no explorer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.heads.box.box_program import Box
from smle.heads.grid.grid_program import GridProgram
from smle.heads.grid.step_blocks import GridBlock
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.checks import Check, row
from smle.nearest.blocks import Block
from smle.nearest.labels import LabelBlock
from smle.rules import Categorical, Choice, Clause, Label, Linear, Row, Specification
from smle.serving.perceptron import Perceptron
from smle.serving.served import Served
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from smle_check.program import Gate, Op, clip_list

__all__ = ["NUMBERS", "explorer_data", "rules_head"]

NUMBERS = 140_000  # most float32 numbers in a page, about 750 kB of base64
_LITERALS = 3_000  # literals and excluded pairs, over all rules


def explorer_data(model: Served, *, medians: dict[str, float]) -> dict[str, Any] | None:
    """Return what the page needs to draw slices, as plain data, or None if that is too large.

    `medians` are the starting values, by input column.
    """
    proof, spec = model.proof, model.specification_
    network = model.front if isinstance(model.front, Perceptron) and model.front.further is None else None
    size = 0 if network is None else sum(values.size for values in arrays_of(network.tensors).values())
    data = {"inputs": _inputs(spec, medians), **_outputs(spec), "rules": _rules(spec)}
    if proof is not None and not isinstance(model.head, Box):
        program = model.head if isinstance(model.head, GridProgram) else None
        head, numbers = rules_head(proof) if program is None else grid_head(program)
        if numbers > NUMBERS:
            return None
        start = _safe_at(program, data["inputs"]) if program else arrays_of(proof.tensors)["clips.default"]
        data |= {"steps" if program else "head": head, "answers": [float(f"{value:.6g}") for value in start.tolist()]}
        return data if network is None or size + numbers > NUMBERS else {**data, "network": _network(network)}
    if network is None or size + (0 if proof is None else _size(proof)) > NUMBERS:
        return None
    cells = model.cells
    regions = [
        {"rows": [_row(cells.rows[row]) for row in rows], "rules": list(cells.rules[region])}
        for region, rows in enumerate(cells.regions)
        if region not in cells.gated
    ]
    data |= {"network": _network(network), "gated": [list(cells.rules[region]) for region in cells.gated]}
    box = {} if proof is None or not isinstance(model.head, Box) else {"box": _box(model.head, proof)}
    return {**data, "ungated": regions, **box}


def _size(certificate: Certificate) -> int:
    return sum(values.size for values in arrays_of(certificate.tensors).values())


def rules_head(certificate: Certificate) -> tuple[dict[str, Any], int]:
    """Return a head of rules as plain data, and how many numbers it holds."""
    document = certificate.document
    exact = smle_check.StatedSpecification(document["specification"], certificate.block)
    regions = document["gate"]["regions"]
    arrays = arrays_of(certificate.tensors)
    ops = clip_list(exact, limits_of(exact), regions)
    tensors = _read(ops, arrays, "safe.slope", "safe.offset")
    size = sum(values.size for values in tensors.values()) + 2 * sum(len(rule.exclusions) for rule in exact.rules)
    size += arrays["check.outputs"].size if "check.outputs" in arrays else 0
    place = {region: i for i, region in enumerate(regions)}
    is_checked = "check.scale" in arrays and size <= NUMBERS
    search = Candidates(certificate).proposals if is_checked else None
    head = {
        "ops": [_operation(op) for op in ops],
        "tensors": {name: values.tolist() for name, values in tensors.items()},
        "where": [[place[region] for region in rule.regions] for rule in exact.rules],
        "place": place,
        "check": _check(exact, regions, arrays) if is_checked else None,
        "blocks": [_searched(part, search.rules, len(exact.outputs)) for part in search.parts] if search else [],
        "tree": document["program"].get("tree"),
    }
    return head, size


def grid_head(program: GridProgram) -> tuple[dict[str, Any], int]:
    """Return a grid head as plain data (check, safe answers, tables of proposals), and how many numbers it holds."""
    tensors, proposals = program.stored, program.proposals
    blocks = [{"number": number, **_block(block)} for number, block in enumerate(proposals.blocks)]
    block_of = {int(c): number for number, block in enumerate(proposals.blocks) for c in block.clauses}
    rules = [rule for rule, *_ in program.listed.clauses]
    regions = program.certificate.document["gate"]["regions"]
    place = {region: i for i, region in enumerate(regions)}

    def affine(slope: npt.NDArray[Any], offset: npt.NDArray[Any]) -> list[dict[str, Any]]:
        return [
            {"slope": own, "offset": at} for own, at in zip(_sparse(slope), offset.astype(float).tolist(), strict=True)
        ]

    names = {"lowest": "domain.lower_float64", "highest": "domain.upper_float64", "lower": "grid.input_lower"}
    names |= {name: f"grid.input_{name}" for name in ("upper", "numerator", "denominator")}
    head: dict[str, Any] = {
        **{name: tensors[f"grid.{name}"].tolist() for name in ("numerator", "denominator", "lower", "upper")},
        "input": {
            "stepped": [step is not None for step in program.lattice.input_steps],
            **{name: tensors[stored].tolist() for name, stored in names.items()},
        },
        "gate": {
            "rows": _sparse(tensors["gate.rows"]),
            "thresholds": tensors["gate.thresholds_float64"].tolist(),
            "members": [list(own) for own in program.members],
        },
        "check": {
            **{name: _sparse(tensors[f"check.{name}"]) for name in ("outputs", "steps")},
            "thresholds": tensors["check.thresholds"].tolist(),
            "real": [
                {
                    "inputs": _sparse(tensors[f"check.inputs_{kind}"]),
                    "fractions": tensors[f"check.fractions_{kind}"].tolist(),
                }
                for kind in ("float32", "float64")
            ],
        },
        "clauses": [
            [rule, list(own), program.of_rule[c], block_of.get(c)]
            for c, (rule, own) in enumerate(zip(rules, program.clauses, strict=True))
        ],
        "where": [[place[region] for region in rule.regions] for rule in program.lattice.rules],
        "place": place,
        "tree": _plain_tree(program.tree),
        "safe": [affine(*leaf) for leaf in zip(tensors["safe.slope"], tensors["safe.offset"], strict=True)],
        "fixed": affine(proposals.reduction.T, proposals.reduction.t),
        "blocks": blocks,
    }
    large = sum(np.size(values) for block in blocks for values in block.values())
    rows = sum(np.count_nonzero(tensors[f"check.{name}"]) for name in ("outputs", "steps", "inputs_float64"))
    return head, int(large + rows)


def _safe_at(program: GridProgram, inputs: list[dict[str, Any]]) -> npt.NDArray[Any]:
    """Return the safe answer at the explorer's starting point."""
    x = np.zeros((1, sum(len(item["columns"]) for item in inputs)))
    for item in inputs:
        if item["kind"] == "category":
            x[0, item["columns"][item["start"]]] = 1.0
        else:
            x[0, item["columns"][0]] = item["start"]
    read = program.read(x)
    bits = program.bits(read, x.dtype) if program.members else None
    return np.asarray(program.values(program.safe(read, bits, 1))[0])


def _sparse(matrix: npt.NDArray[Any]) -> list[list[list[float]]]:
    return [[[int(k), float(row[k])] for k in np.flatnonzero(row)] for row in matrix]


def _block(block: GridBlock) -> dict[str, Any]:
    names = ("outputs", "places", "B", "base", "free_of_base", *(("P", "R", "back", "H") if len(block.free) else ()))
    return {name: getattr(block, name).tolist() for name in names}


def _plain_tree(tree: Any) -> Any:
    """Return the tree of safe answers with cuts as floats."""
    if tree is None:
        return None
    question = tree[0]
    if isinstance(question, dict):
        question = {"input": question["input"], "at": float(Fraction(question["at"]))}
    return [question, _plain_tree(tree[1]), _plain_tree(tree[2])]


def _check(spec: smle_check.StatedSpecification, regions: list[int], arrays: dict[str, Any]) -> dict[str, Any]:
    checked, check = checked_of(spec), Check(spec, regions, arrays)
    return {
        "literals": [
            {
                "y": row(check.outputs, k),
                "sizes": row(check.sizes, k),
                "x": row(check.inputs, k) if k < checked.moving else [],
                "threshold": float(check.thresholds[k]),
            }
            for k in range(len(check.thresholds))
        ],
        "clauses": [[clause.rule, list(clause.literals)] for clause in checked.clauses],
        "excluded": [[rule, [list(pair) for pair in spec.rules[rule].exclusions]] for rule in checked.excluding],
        "scale": arrays["check.scale"].tolist(),
    }


def _searched(part: Block | LabelBlock, rules: npt.NDArray[Any], m: int) -> dict[str, Any]:
    """Return the rows `y + x <= bound` of a block, and its clauses; exclusions are elsewhere in the data."""
    if isinstance(part, LabelBlock):
        k = len(part.outputs)
        y, x, bounds = np.concatenate([-np.eye(k), np.eye(k)]), np.zeros((2 * k, 0)), [*-part.least, *part.most]
        clauses = [[label if on else k + label for label, on in clause] for clause in part.words]
    else:
        y, x, bounds, clauses = part.over, part.slope, [*part.bound], part.clauses
    wide = np.zeros((len(y), m))
    wide[:, part.outputs] = y
    listed = zip(_sparse(wide), _sparse(x), map(float, bounds), strict=True)
    return {
        "outputs": part.outputs.tolist(),
        "rows": [{"y": own, "x": moving, "bound": bound} for own, moving, bound in listed],
        "clauses": [[rule, clause] for rule, clause in zip(rules[part.parts].tolist(), clauses, strict=False)],
    }


def _inputs(spec: Specification, medians: dict[str, float]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    stand_ins = {
        flag: [*zip(range(p.start, p.stop), map(float, i.stand_in), strict=True)] for i, p, flag in spec.flagged
    }
    for item, place in spec.column_slices:
        facts: dict[str, Any] = {"name": item.name, "columns": list(range(place.start, place.stop))}
        if isinstance(item, Categorical):
            shares = [medians.get(column, 0.0) for column in item.columns]
            facts |= {"kind": "category", "categories": list(item.categories), "start": int(np.argmax(shares))}
        else:
            low, high = float(item.lower), float(item.upper)
            middle = min(max(medians.get(item.name, (low + high) / 2), low), high)
            middle = float(round(middle)) if item.integer else float(f"{middle:.4g}")
            facts |= {"kind": "number", "low": low, "high": high, "integer": item.integer, "dates": item.dates}
            facts["step"] = None if item.step is None else float(item.step)
            facts["start"] = min(max(middle, low), high)
            if place.start in stand_ins:  # a missing input has its stand-in value
                facts["sets"] = stand_ins[place.start]
        result.append(facts)
    return result


def _outputs(spec: Specification) -> dict[str, Any]:
    outputs: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    for item, place in spec.output_slices:
        kind = "score" if isinstance(item, Choice) else "label" if isinstance(item, Label) else "number"
        outputs += [{"name": name, "kind": kind} for name in item.columns]
        if isinstance(item, Choice):
            columns = list(range(place.start, place.stop))
            choices.append({"name": item.name, "pick": item.pick, "columns": columns, "options": list(item.options)})
    if spec.grid is not None:
        for output, step, chosen in zip(outputs, spec.grid.steps, spec.grid.chosen, strict=True):
            output["step"] = None if chosen else float(step)
    return {"outputs": outputs, "choices": choices}


def _form(terms: Linear) -> list[list[float]]:
    return [[k, float(v)] for k, v in terms]


def _row(row: Row) -> dict[str, Any]:
    return {"x": _form(row.coefficients), "bound": float(row.bound), "strict": row.strict}


def _rules(spec: Specification) -> list[dict[str, Any]]:
    """Return the clauses of the rules as floats; `complete` is False if there were too many to embed."""
    left, result = _LITERALS, []
    for rule in spec.rules:
        size = sum(len(clause.literals) for clause in rule.requirement.clauses) + len(rule.requirement.exclusions)
        complete = size <= left
        left -= size if complete else 0
        result.append(
            {
                "name": rule.name,
                "complete": complete,
                "clauses": [_clause(clause) for clause in rule.requirement.clauses] if complete else [],
                "exclusions": rule.requirement.exclusions.tolist() if complete else [],
            }
        )
    return result


def _clause(clause: Clause) -> list[dict[str, Any]]:
    return [
        {
            "y": _form(literal.outputs),
            "x": _form(literal.inputs),
            "bound": float(literal.bound),
            "strict": literal.strict,
        }
        for literal in clause.literals
    ]


def _pack(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as its shape and base64 of little-endian float32."""
    text = base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")
    return {"shape": list(values.shape), "data": text}


def _network(network: Perceptron) -> dict[str, Any]:
    shift, scale = network.scaling
    layers = [{"weight": _pack(weight), "bias": _pack(bias)} for weight, bias in network.layers]
    return {"shift": _pack(shift), "scale": _pack(scale), "layers": layers}


def _box(head: Box, certificate: Certificate) -> dict[str, Any]:
    """Return the operations of a box and its arrays; float32 arrays are packed."""
    tensors = _read(head.ops, arrays_of(certificate.tensors), "bounds.lower")
    return {
        "ops": [_operation(op) for op in head.ops],
        "tensors": {n: _pack(v) if v.dtype == np.float32 else v.tolist() for n, v in tensors.items()},
    }


def _read(ops: Iterable[Op], arrays: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return the arrays that operations read for float64 features, and further ones by name."""
    names = {name.replace("_F", "_float64") for op in ops for name in op.args if name is not None}
    return {name: arrays[name] for name in sorted(names.union(more)) if name in arrays}


def _operation(op: Op) -> dict[str, Any]:
    fixed = op.fixed
    args = [None if name is None else name.replace("_F", "_float64") for name in op.args]
    if isinstance(fixed, Gate):
        plain: Any = {"comparisons": [list(c) for c in fixed.comparisons], "members": [list(m) for m in fixed.members]}
    elif fixed is None or isinstance(fixed, str):
        plain = fixed
    else:
        plain = {"bits": list(fixed.bits), "outputs": list(fixed.outputs)}
    return {"kind": op.kind, "out": op.out, "args": args, "fixed": plain}
