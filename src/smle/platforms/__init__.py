"""Model folders on other platforms: MLflow, Ray Data, Dask, Spark, and any reader of Arrow, such as DuckDB."""

from smle.platforms.clusters import RowsPredictor, predict_dask, predict_ray
from smle.platforms.engines import predict_arrow, predict_spark

__all__ = ["RowsPredictor", "predict_arrow", "predict_dask", "predict_ray", "predict_spark"]
