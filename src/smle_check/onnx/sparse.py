"""Sparse sums: where a matrix would be mostly zeros, rows are added up term by term."""

from collections.abc import Callable, Mapping, Sequence

from smle_check.onnx.program import Program

DENSE = 1 << 16  # larger matrices may be written sparsely
Put = Callable[[str, list[float], tuple[int, ...]], str]


def is_sparse(forms: Sequence[Mapping[int, float]], width: int) -> bool:
    """Return whether rows are better added up term by term: the matrix is large, with few numbers."""
    size = len(forms) * width
    return size > DENSE and 16 * sum(2 * len(form) + 1 for form in forms) < size


def summed(
    p: Program, forms: Sequence[Mapping[int, float]], values: str, name: str, stored: str, put: Put
) -> str:  # fmt: skip
    """Return sum_k form[k] values[k] for each form (forms, n), with constants by `put`.

    Forms with at most 1, 2, 4, ... terms are added up together; a shorter form is padded with 0 times the first value,
    which is finite.
    """
    lengths: dict[int, list[int]] = {}
    for i, form in enumerate(forms):
        lengths.setdefault(1 << (max(len(form), 1) - 1).bit_length(), []).append(i)
    p.reserve(4 * sum(length * len(rows) for length, rows in lengths.items()))
    parts, order = [], list[int]()
    for length, rows in sorted(lengths.items()):
        terms = [[*forms[i].items()] + [(0, 0.0)] * (length - len(forms[i])) for i in rows]
        columns, own = f"{stored}.columns.{length}", f"{name}/terms/{length}"
        places = p.integers(columns, [t[j][0] for j in range(length) for t in terms], (length, len(rows)))
        factors = put(f"{stored}.{length}", [t[j][1] for j in range(length) for t in terms], (length, len(rows), 1))
        picked = p.add("Gather", [values, places], f"{own}/values", axis=0)
        products = p.add("Mul", [factors, picked], own)
        first = p.integers("constants/first", [0], (1,))
        parts.append(p.add("ReduceSum", [products, first], f"{own}/sums", keepdims=0))
        order += rows
    if len(parts) == 1:
        return parts[0]
    joined = p.add("Concat", parts, f"{name}/terms", axis=0)
    place = {row: i for i, row in enumerate(order)}
    turned = p.integers(f"{stored}.order", [place[i] for i in range(len(forms))], (len(forms),))
    return p.add("Gather", [joined, turned], f"{name}/sums", axis=0)
