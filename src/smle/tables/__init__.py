"""Tables: columns matched by name, every number read in one way, files read and written."""

from smle.tables.any_table import as_table, column_names, raw_values, require_columns
from smle.tables.bad_rows import ASIDE, BAD_ROWS, SetAside, require_bad_rows
from smle.tables.domain import POLICIES, apply_domain_policy, in_domain, require_in_domain
from smle.tables.outputs import encode_choices, encode_numbers, option_of, option_values, outputs_of
from smle.tables.reader import Reader, ReadTable, encode_columns, encode_inputs, table_digest
from smle.tables.values import WHOLE_FLOAT64, plain_array, read_numbers, require_exact

__all__ = [
    "ASIDE",
    "BAD_ROWS",
    "POLICIES",
    "WHOLE_FLOAT64",
    "ReadTable",
    "Reader",
    "SetAside",
    "apply_domain_policy",
    "as_table",
    "column_names",
    "encode_choices",
    "encode_columns",
    "encode_inputs",
    "encode_numbers",
    "in_domain",
    "option_of",
    "option_values",
    "outputs_of",
    "plain_array",
    "raw_values",
    "read_numbers",
    "require_bad_rows",
    "require_columns",
    "require_exact",
    "require_in_domain",
    "table_digest",
]
