"""Random rule sets that are consistent by construction: a hidden answer obeys every rule with a gap.

It is affine in x, or one affine function on either side of a cut. Limits and coupled rows, constant and moving,
alternatives, one-input and oblique conditions, strict and not, outputs in units from 1e-3 to 1e6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.rules import Specification

__all__ = ["RuleSet", "draw"]

Array = npt.NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules as text, and the units of the outputs."""

    text: str
    units: Array

    @property
    def spec(self) -> Specification:
        """The rules, compiled."""
        return Specification.from_yaml(self.text)


def draw(seed: int) -> RuleSet:
    """Draw one rule set: 2 to 12 rules, 1 to 4 outputs, 1 to 5 inputs."""
    rng = np.random.default_rng(seed)
    d, m, count = int(rng.integers(1, 6)), int(rng.integers(1, 5)), int(rng.integers(2, 13))
    width = 10.0 ** rng.uniform(-2, 4, d)
    low = np.where(rng.random(d) < 0.5, 0.0, -width * rng.uniform(0, 1, d))
    low, high = _short(low), _short(low + width)
    units = 10.0 ** rng.uniform(-3, 6, m)
    moves = rng.random(m) < 0.4
    parts: list[tuple[str | None, _Hidden]] = [(None, _hidden(rng, moves, units, low, high))]
    if rng.random() < 0.3:  # another answer on the other side of a cut
        k = int(rng.integers(d))
        at = float(f"{rng.uniform(low[k], high[k]):.4g}")
        strict = bool(rng.random() < 0.5)
        parts = [(f"x{k} {'<' if strict else '<='} {_n(at)}", parts[0][1])]
        parts.append((f"x{k} {'>=' if strict else '>'} {_n(at)}", _hidden(rng, moves, units, low, high)))
    coupled = m > 1 and rng.random() < 1 / 3
    lines = [f"inputs: {{{', '.join(f'x{k}: [{_n(low[k])}, {_n(high[k])}]' for k in range(d))}}}"]
    lines += [f"outputs: [{', '.join(f'y{i}' for i in range(m))}]", "rules:"]
    for r in range(count):
        part, hidden = parts[int(rng.integers(len(parts)))]
        when = " and ".join(filter(None, [part, _condition(rng, low, high)]))
        then = _requirement(rng, hidden, coupled=coupled)
        lines.append(f"  - {{name: r{r}, {f'when: {when}, ' if when else ''}then: {then}}}")
    return RuleSet("\n".join(lines) + "\n", units)


@dataclass(frozen=True, eq=False)
class _Hidden:
    slope: Array
    offset: Array
    units: Array
    low: Array
    high: Array


def _hidden(rng: Generator, moves: npt.NDArray[np.bool_], units: Array, low: Array, high: Array) -> _Hidden:
    m, d = len(units), len(low)
    slope = rng.normal(size=(m, d)) * (rng.random((m, d)) < 0.5) * moves[:, None] * units[:, None] / (high - low)
    return _Hidden(slope, rng.normal(size=m) * units, units, low, high)


def _short(values: Array) -> Array:
    """Round to four digits, so that texts are as people write them."""
    return np.array([float(f"{v:.4g}") for v in np.atleast_1d(values)])


def _n(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e7 or value == 0 else f"{value:.12f}"
    return text if text not in ("-0", "") else "0"


def _condition(rng: Generator, low: Array, high: Array) -> str | None:
    """Return a condition on the inputs, or None: everywhere."""
    kind, d = rng.random(), len(low)
    if kind < 0.3:
        return None
    parts = []
    for _ in range(1 if kind < 0.7 else 2):
        strict = "<" if rng.random() < 0.3 else "<="
        if d > 1 and rng.random() < 0.3:  # oblique
            k, j = rng.choice(d, 2, replace=False)
            ratio = float(f"{(high[k] - low[k]) / (high[j] - low[j]):.3g}")
            at = float(f"{low[k] + ratio * low[j] + rng.uniform(0.3, 1.7) * (high[k] - low[k]):.4g}")
            parts.append(f"x{k} + {_n(ratio)} * x{j} {strict} {_n(at)}")
        else:
            k = int(rng.integers(d))
            at = float(f"{rng.uniform(low[k], high[k]):.4g}")
            parts.append(f"x{k} {strict if rng.random() < 0.5 else strict.replace('<', '>')} {_n(at)}")
    return " and ".join(parts)


def _requirement(rng: Generator, hidden: _Hidden, *, coupled: bool) -> str:
    """Return a clause that the hidden answer satisfies with a gap of at least a twentieth of a unit."""
    m = len(hidden.units)
    first = _inequality(
        rng,
        hidden,
        rng.choice(m, min(m, int(rng.integers(2, 4))), replace=False)
        if coupled and rng.random() < 0.5
        else [int(rng.integers(m))],
    )
    if coupled and rng.random() < 0.3:
        other = _inequality(rng, hidden, [int(rng.integers(m))], broken=True)
        return f"{first} or {other}"
    return first


def _inequality(rng: Generator, hidden: _Hidden, outputs: npt.ArrayLike, *, broken: bool = False) -> str:
    own = [int(i) for i in np.atleast_1d(outputs)]
    signs = np.where(rng.random(len(own)) < 0.5, -1.0, 1.0) if len(own) > 1 else np.ones(1)
    unit = hidden.units[own[0]]
    weights = [float(f"{s * unit / hidden.units[i]:.3g}") for s, i in zip(signs, own, strict=True)]
    slope = sum(w * hidden.slope[i] for w, i in zip(weights, own, strict=True))
    offset = sum(w * hidden.offset[i] for w, i in zip(weights, own, strict=True))
    upper = bool(rng.random() < 0.5)
    gap = rng.uniform(0.05, 2.0) * unit * (1 if upper != broken else -1)
    moving = np.any(slope) and rng.random() < 0.7
    terms = [(w, f"y{i}") for w, i in zip(weights, own, strict=True)]
    operator = ("<" if upper else ">") + ("" if rng.random() < 0.2 else "=")
    if moving:
        stated = np.array([float(f"{s:.12g}") for s in slope])
        right = " ".join(
            f"{'+' if s > 0 else '-'} {_n(abs(s)) if abs(s) >= 1e-3 else f'{abs(s):.15f}'} * x{k}"
            for k, s in enumerate(stated)
            if s
        )
        drift = float(np.abs(stated - slope) @ np.maximum(np.abs(hidden.low), np.abs(hidden.high)))
        at = offset + gap + np.sign(gap) * drift
        return f"{_form(terms)} {operator} {_n(at)} {right}"
    ends = (
        np.sort(np.stack([slope * hidden.low, slope * hidden.high]), axis=0).sum(axis=1)
        if np.any(slope)
        else np.zeros(2)
    )
    return f"{_form(terms)} {operator} {_n(offset + (ends[1] if gap > 0 else ends[0]) + gap)}"


def _form(terms: list[tuple[float, str]]) -> str:
    parts = [f"{'+' if w > 0 else '-'} {'' if abs(w) == 1 else _n(abs(w)) + ' * '}{name}" for w, name in terms]
    text = " ".join(parts)
    return text.removeprefix("+ ") if text.startswith("+") else "0 " + text
