"""Model folders on other people's platforms: MLflow, Ray Data, Dask. Each is imported only where it is asked for."""

from smle.platforms.clusters import RowsPredictor, predict_dask, predict_ray

__all__ = ["RowsPredictor", "predict_dask", "predict_ray"]
