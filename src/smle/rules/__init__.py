"""The rule language: what must hold. Nothing is solved here."""

from smle.rules.about import ABOUT, NOTHING, About
from smle.rules.arrays import Literals, label_columns
from smle.rules.dates import date_text, day_of
from smle.rules.formula import CNF, Clause, Linear, Literal, Polytope, Row, dot, exclusion, linear
from smle.rules.grids import Grid
from smle.rules.helpers import bounded_change, forbidden_pairs_from_data, linear_rule, mutually_exclusive, rule
from smle.rules.lookups import Table
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
from smle.rules.shown import clause_text, html_table, number_text, region_text, row_text, share_text, text_table
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, RuleText, Specification

__all__ = [
    "ABOUT",
    "CNF",
    "NOTHING",
    "About",
    "Categorical",
    "Choice",
    "Clause",
    "Condition",
    "Grid",
    "Label",
    "Linear",
    "Literal",
    "Literals",
    "Number",
    "NumericInput",
    "Polytope",
    "Row",
    "Rule",
    "RuleText",
    "Specification",
    "Table",
    "Term",
    "at_least",
    "at_least_one",
    "at_most",
    "at_most_one",
    "bounded_change",
    "clause_text",
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
    "number_text",
    "region_text",
    "row_text",
    "rule",
    "score",
    "share_text",
    "text_table",
    "variable",
    "variables",
]
