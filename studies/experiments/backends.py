"""Where jobs run: in this process, in local processes (loky), on a ray or a dask cluster.

A back-end is a context that hands out `submit(call, payload) -> Future`; `spread` yields `(payload, result)` as they
end, in any order. `result` is the function's value, or the exception by which a cluster says that it lost the job.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from smle.errors import MissingDependencyError, TrainingError

P = TypeVar("P")
Submit = Callable[..., "Future[Any]"]

# Each worker is one job on one core: libraries that start threads of their own would only get in each other's way.
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


def spread(
    call: Callable[[P], Any], payloads: Sequence[P], *, backend: str, n_jobs: int, address: str | None
) -> Generator[tuple[P, Any], None, None]:
    """Yield `(payload, result)` for every payload, as they end.

    Raises:
        ValueError: If the back-end is unknown, or an address is given to the local one.
        MissingDependencyError: If the back-end's package is not installed.
        TrainingError: If a local worker process died.
    """
    if backend not in BACKENDS:
        raise ValueError(f"Expected a backend among {', '.join(BACKENDS)}. Got '{backend}'.")
    if n_jobs == 0 or n_jobs < -1:
        raise ValueError(f"Expected a positive number of jobs at a time, or -1 for all cores. Got {n_jobs}.")
    if backend == "loky" and address is not None:
        raise ValueError("The backend 'loky' is local: expected no address. Use --backend ray or --backend dask.")
    if backend == "loky" and n_jobs == 1:
        for payload in payloads:
            yield payload, call(payload)
        return
    with BACKENDS[backend](None if n_jobs == -1 else n_jobs, address) as submit:
        waiting = {submit(call, payload): payload for payload in payloads}
        for future in as_completed(waiting):
            lost = future.exception()
            if isinstance(lost, TerminatedWorkerError):
                raise TrainingError(
                    f"A worker process died ({' '.join(str(lost).split())[:200]}). Finished jobs are kept: run the "
                    "same command again to go on, with fewer --jobs if memory ran out."
                )
            yield waiting[future], future.result() if lost is None else lost


@contextmanager
def _local(workers: int | None, address: None) -> Iterator[Submit]:
    executor, finished = get_reusable_executor(max_workers=workers or cpu_count(), env=_THREADS), False
    try:
        yield executor.submit
        finished = True
    finally:
        # Workers of an interrupted run would go on for minutes, and idle ones hold torch in memory.
        executor.shutdown(wait=finished, kill_workers=not finished)


@contextmanager
def _ray(workers: int | None, address: str | None) -> Iterator[Submit]:
    ray = _package("ray", backend="ray")
    started = not ray.is_initialized()
    if started:
        local = {} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(
            address or "local", log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": _THREADS}, **local
        )
    try:
        remote = ray.remote(num_cpus=1)(lambda call, payload: call(payload))
        yield lambda call, payload: remote.remote(call, payload).future()
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _dask(workers: int | None, address: str | None) -> Iterator[Submit]:
    distributed = _package("distributed", backend="dask")
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "env": _THREADS}
    with distributed.Client(address) if address else distributed.Client(**options) as client:
        yield client.get_executor(pure=False).submit


def _package(name: str, *, backend: str) -> Any:
    """Import a package of the extra `audit`; untyped, so that types are checked alike where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependencyError(
            f"The backend '{backend}' needs packages that are not installed. Run: pip install -e '.[audit]'"
        ) from None


BACKENDS: dict[str, Callable[..., Any]] = {"loky": _local, "ray": _ray, "dask": _dask}
