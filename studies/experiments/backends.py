"""Where jobs run: in this process, in local processes (joblib), on a ray or a dask cluster.

A back-end calls one top-level function on many payloads and yields `(payload, result)` as they end, in any order.
`result` is the function's value, or the exception by which a cluster says that it lost the job.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from smle.errors import MissingDependencyError, TrainingError

P = TypeVar("P")
Call = Callable[[P], Any]
Pairs = Generator[tuple[P, Any], None, None]

# Each worker is one job on one core: libraries that start threads of their own would only get in each other's way.
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


def spread(call: Call[P], payloads: Sequence[P], *, backend: str, n_jobs: int, address: str | None) -> Pairs[P]:
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
    return BACKENDS[backend](call, payloads, n_jobs, address)


def _local(call: Call[P], payloads: Sequence[P], n_jobs: int, address: str | None) -> Pairs[P]:
    if n_jobs == 1:
        for payload in payloads:
            yield payload, call(payload)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    finished = False
    try:
        with parallel_config(backend="loky", inner_max_num_threads=1):
            parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
            yield from parallel(delayed(_pair)(call, payload) for payload in payloads)
        finished = True
    except TerminatedWorkerError as error:
        raise TrainingError(
            f"A worker process died ({' '.join(str(error).split())[:200]}). Finished jobs are kept: run the same "
            "command again to go on, with fewer --jobs if memory ran out."
        ) from None
    finally:
        # Workers of an interrupted run would go on for minutes, and idle ones hold torch in memory.
        get_reusable_executor().shutdown(wait=finished, kill_workers=not finished)


def _pair(call: Call[P], payload: P) -> tuple[P, Any]:
    return payload, call(payload)


def _ray(call: Call[P], payloads: Sequence[P], n_jobs: int, address: str | None) -> Pairs[P]:
    ray = _package("ray", backend="ray")
    started = not ray.is_initialized()
    if started:
        size = {} if address else {"num_cpus": None if n_jobs == -1 else n_jobs}
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": _THREADS},
            **size,
        )
    try:
        remote = ray.remote(num_cpus=1)(_pair)
        waiting = {remote.remote(call, payload): payload for payload in payloads}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            payload = waiting.pop(ready[0])
            try:
                yield ray.get(ready[0])
            except ray.exceptions.RayError as error:
                yield payload, error
    finally:
        if started:
            ray.shutdown()


def _dask(call: Call[P], payloads: Sequence[P], n_jobs: int, address: str | None) -> Pairs[P]:
    distributed = _package("distributed", backend="dask")
    with contextlib.ExitStack() as stack:
        where: Any = address
        if where is None:
            workers = None if n_jobs == -1 else n_jobs
            where = stack.enter_context(
                distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, env=_THREADS)
            )
        client = stack.enter_context(distributed.Client(where))
        waiting = {client.submit(_pair, call, payload, pure=False): payload for payload in payloads}
        for future in distributed.as_completed(list(waiting)):
            payload = waiting.pop(future)
            lost = future.exception()
            yield future.result() if lost is None else (payload, lost)


def _package(name: str, *, backend: str) -> Any:
    """Import a package of the extra `audit`; untyped, so that types are checked alike where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependencyError(
            f"The backend '{backend}' needs packages that are not installed. Run: pip install -e '.[audit]'"
        ) from None


BACKENDS: dict[str, Callable[..., Pairs[Any]]] = {"loky": _local, "ray": _ray, "dask": _dask}
