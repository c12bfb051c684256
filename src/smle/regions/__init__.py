"""Which rules meet where: rows, guard, cells, what binds in each."""
