"""Model folders on other people's platforms: MLflow, Ray Data, Dask, Spark, and whatever reads Arrow, as DuckDB does.

Each is imported only where it is asked for.
"""

from smle.platforms.clusters import RowsPredictor, predict_dask, predict_ray
from smle.platforms.engines import predict_arrow, predict_spark

__all__ = ["RowsPredictor", "predict_arrow", "predict_dask", "predict_ray", "predict_spark"]
