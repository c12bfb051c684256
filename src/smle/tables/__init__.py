"""Tables: columns matched by name, files read and written."""

from smle.tables.encode import (
    column_names,
    encode_choices,
    encode_inputs,
    encode_numbers,
    in_domain,
    option_values,
    require_columns,
    require_in_domain,
    table_digest,
)

__all__ = [
    "column_names",
    "encode_choices",
    "encode_inputs",
    "encode_numbers",
    "in_domain",
    "option_values",
    "require_columns",
    "require_in_domain",
    "table_digest",
]
