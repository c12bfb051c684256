"""What is served: a model in front, a reader of tables, a certified head. One object behind every door."""
