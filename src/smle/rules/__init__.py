"""What must hold: statements only, no solving."""

from smle.rules.arrays import ClauseArrays, Literals, label_columns
from smle.rules.dates import date_text, day_of
from smle.rules.exclusions import NeverTogether
from smle.rules.formula import CNF, Clause, Linear, Literal, Polytope, Row, dot, exclusion, linear
from smle.rules.helpers import bounded_change, forbidden_pairs_from_data, linear_rule, mutually_exclusive, rule
from smle.rules.operators import (
    Condition,
    Term,
    at_least,
    at_least_one,
    at_most,
    at_most_one,
    exactly,
    exactly_one,
    logit,
    maximum,
    minimum,
    score,
    variable,
    variables,
)
from smle.rules.shown import html_table, text_table
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, RuleText, Specification

__all__ = [
    "CNF",
    "Categorical",
    "Choice",
    "Clause",
    "ClauseArrays",
    "Condition",
    "Label",
    "Linear",
    "Literal",
    "Literals",
    "NeverTogether",
    "Number",
    "NumericInput",
    "Polytope",
    "Row",
    "Rule",
    "RuleText",
    "Specification",
    "Term",
    "at_least",
    "at_least_one",
    "at_most",
    "at_most_one",
    "bounded_change",
    "date_text",
    "day_of",
    "dot",
    "exactly",
    "exactly_one",
    "exclusion",
    "forbidden_pairs_from_data",
    "html_table",
    "label_columns",
    "linear",
    "linear_rule",
    "logit",
    "maximum",
    "minimum",
    "mutually_exclusive",
    "rule",
    "score",
    "text_table",
    "variable",
    "variables",
]
