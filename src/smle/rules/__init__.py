"""What must hold: statements only, no solving."""

from smle.rules.formula import CNF, Clause, Literal
from smle.rules.polytope import Linear, Polytope, Row, dot, linear
from smle.rules.specification import (
    Categorical,
    Choice,
    Label,
    Number,
    NumericInput,
    Rule,
    Specification,
)

__all__ = [
    "CNF",
    "Categorical",
    "Choice",
    "Clause",
    "Label",
    "Linear",
    "Literal",
    "Number",
    "NumericInput",
    "Polytope",
    "Row",
    "Rule",
    "Specification",
    "dot",
    "linear",
]
