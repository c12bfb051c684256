"""The head of rules: limits and checks read off the rules, behind any model."""
