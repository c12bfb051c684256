"""The learned box behind scikit-learn's interface: `SMLERegressor` and `SMLEClassifier`."""
