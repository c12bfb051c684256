"""Tables: columns matched by name, files read and written."""

from smle.tables.columns import encode_columns
from smle.tables.encode import (
    apply_domain_policy,
    column_names,
    encode_choices,
    encode_inputs,
    encode_numbers,
    in_domain,
    option_of,
    option_values,
    require_columns,
    require_in_domain,
    table_digest,
)
from smle.tables.outputs import outputs_of
from smle.tables.values import WHOLE_FLOAT64, plain_array, require_exact

__all__ = [
    "WHOLE_FLOAT64",
    "apply_domain_policy",
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
    "require_columns",
    "require_exact",
    "require_in_domain",
    "table_digest",
]
