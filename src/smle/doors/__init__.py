"""`smle.load`, `verify`, `certify` and `project`, for every kind of model."""
