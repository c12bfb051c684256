import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from smle.errors import MissingDependencyError, TrainingError
from studies.experiments import backends, runner
from studies.experiments.runner import read_results, run_jobs
from studies.experiments.store import Store
from support.fake_jobs import FakeJob, calls, die, solve
from support.processes import environment


def make(folder, count, **options):
    return [FakeJob(f"job{i}", str(folder), **options) for i in range(count)]


def names(results):
    return [row["name"] for row in results.rows]


def test_jobs_with_lists_of_values_are_found_again(tmp_path):
    jobs = make(tmp_path, 2, methods=("plain", "safe"))
    run_jobs(jobs, solve, folder=tmp_path)
    assert run_jobs(jobs, solve, folder=tmp_path).reused == 2
    assert run_jobs(make(tmp_path, 2, methods=("plain",)), solve, folder=tmp_path).reused == 0
    assert calls(tmp_path) == ["job0", "job1", "job0", "job1"]


def test_every_result_is_a_file_with_its_origin(tmp_path):
    results = run_jobs(make(tmp_path, 3), solve, folder=tmp_path)
    assert names(results) == ["job0", "job1", "job2"]
    document = json.loads((tmp_path / "jobs" / "job1.json").read_text())
    assert {"commit", "smle", "packages", "processor", "hostname", "when"} <= document["origin"].keys()
    assert document["seconds"] > 0
    assert document["rows"][0]["score"] is None  # JSON has no NaN


def test_finished_jobs_are_not_solved_again(tmp_path):
    run_jobs(make(tmp_path, 2), solve, folder=tmp_path)
    results = run_jobs(make(tmp_path, 4), solve, folder=tmp_path)
    assert calls(tmp_path) == ["job0", "job1", "job2", "job3"]
    assert results.reused == 2
    assert names(results) == names(read_results(tmp_path)) == ["job0", "job1", "job2", "job3"]


def test_a_result_of_another_job_under_the_same_key_does_not_count(tmp_path):
    run_jobs(make(tmp_path, 1), solve, folder=tmp_path)
    run_jobs(make(tmp_path, 1, seconds=0.01), solve, folder=tmp_path)
    assert calls(tmp_path) == ["job0", "job0"]


def test_a_damaged_result_is_computed_again(tmp_path, caplog):
    run_jobs(make(tmp_path, 2), solve, folder=tmp_path)
    path = tmp_path / "jobs" / "job0.json"
    path.write_text(path.read_text()[:40])
    assert names(run_jobs(make(tmp_path, 2), solve, folder=tmp_path)) == ["job0", "job1"]
    assert "runs again" in caplog.text
    assert calls(tmp_path).count("job1") == 1


def test_a_failed_job_is_recorded_and_retried_only_when_asked(tmp_path):
    jobs = [*make(tmp_path, 2), FakeJob("bad", str(tmp_path), fails=True)]
    results = run_jobs(jobs, solve, folder=tmp_path)
    (failure,) = results.failures
    assert failure.error == "ZeroDivisionError: job bad cannot be done"
    assert "in solve" in failure.traceback
    assert names(results) == ["job0", "job1"]
    assert run_jobs(jobs, solve, folder=tmp_path).failures == (failure,)
    assert calls(tmp_path).count("bad") == 1
    (tmp_path / "repaired").touch()
    assert not run_jobs(jobs, solve, folder=tmp_path, retry_failed=True).failures
    assert calls(tmp_path).count("bad") == 2
    assert calls(tmp_path).count("job0") == 1


def test_another_commit_is_noticed(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(runner, "commit", lambda: "aaaaaaaaaaaa")
    run_jobs(make(tmp_path, 1), solve, folder=tmp_path)
    assert run_jobs(make(tmp_path, 1), solve, folder=tmp_path).notes == ()
    monkeypatch.setattr(runner, "commit", lambda: "bbbbbbbbbbbb")
    results = run_jobs(make(tmp_path, 2), solve, folder=tmp_path)
    assert "1 from aaaaaaaaaaaa; this is bbbbbbbbbbbb" in results.notes[0]
    assert results.notes[0] in caplog.text


def test_two_jobs_with_one_key_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Two jobs have the key 'job0'"):
        run_jobs(make(tmp_path, 1) * 2, solve, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "slurm"}, "among loky, ray, dask"),
        ({"n_jobs": 0}, "positive number"),
        ({"address": "tcp://x:1"}, "is local"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run_jobs(make(tmp_path, 1), solve, folder=tmp_path, **options)


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_missing_backend_says_how_to_install_it(tmp_path, monkeypatch, backend):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[audit\]'"):
        run_jobs(make(tmp_path, 1), solve, folder=tmp_path, backend=backend)


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    def interrupted(job):
        if job.name == "job2":
            raise KeyboardInterrupt
        return solve(job)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(make(tmp_path, 4), interrupted, folder=tmp_path)
    (run,) = Store(tmp_path).runs()
    assert (run["jobs"], run["asked"]) == (2, 4)
    assert names(run_jobs(make(tmp_path, 4), solve, folder=tmp_path)) == ["job0", "job1", "job2", "job3"]
    assert calls(tmp_path) == ["job0", "job1", "job2", "job3"]


def test_local_processes_use_one_thread_each(tmp_path):
    results = run_jobs(make(tmp_path, 4, seconds=0.2), solve, folder=tmp_path, n_jobs=2)
    assert sorted(names(results)) == ["job0", "job1", "job2", "job3"]
    assert {row["threads"] for row in results.rows} == {1}
    assert os.getpid() not in {row["process"] for row in results.rows}


def test_jobs_that_belong_together_share_a_worker(tmp_path):
    jobs = make(tmp_path, 6, seconds=0.1)
    results = run_jobs(jobs, solve, folder=tmp_path, n_jobs=2, together=lambda job: int(job.name[-1]) % 2)
    processes = [row["process"] for row in results.rows]
    assert len(set(processes[::2])) == len(set(processes[1::2])) == 1


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    script = (
        "from support.fake_jobs import FakeJob, solve\n"
        "from studies.experiments.runner import run_jobs\n"
        f"jobs = [FakeJob(f'job{{i}}', {str(tmp_path)!r}, seconds=0.25) for i in range(200)]\n"
        f"run_jobs(jobs, solve, folder={str(tmp_path)!r}, n_jobs=1)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=environment())
    deadline = time.monotonic() + 600
    while len(list((tmp_path / "jobs").glob("*.json"))) < 3:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path.stem for path in (tmp_path / "jobs").glob("*.json")}
    begun = calls(tmp_path)
    results = run_jobs(make(tmp_path, 8, seconds=0.25), solve, folder=tmp_path)
    assert len(results.rows) == 8
    again = calls(tmp_path)[len(begun) :]
    assert kept.isdisjoint(again)
    assert set(again) == {f"job{i}" for i in range(8)} - kept


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_local_cluster_gives_the_same_results(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    jobs = [*make(tmp_path, 3), FakeJob("bad", str(tmp_path), fails=True)]
    results = run_jobs(jobs, solve, folder=tmp_path, n_jobs=2, backend=backend)
    assert sorted(names(results)) == ["job0", "job1", "job2"]
    assert {row["threads"] for row in results.rows} == {1}
    assert os.getpid() not in {row["process"] for row in results.rows}
    (failure,) = results.failures
    assert failure.error == "ZeroDivisionError: job bad cannot be done"
    assert len(list((tmp_path / "jobs").glob("*.json"))) == 4


@contextmanager
def running(backend):
    """Yield the address of a cluster of one worker."""
    if backend == "dask":
        import distributed

        with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
            yield cluster.scheduler_address
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_the_address_of_a_running_cluster_is_taken(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    with running(backend) as address:
        results = run_jobs(make(tmp_path, 2), solve, folder=tmp_path, backend=backend, address=address)
    assert names(results) == ["job0", "job1"]


@pytest.mark.audit
def test_a_dead_worker_ends_the_run_with_advice(tmp_path):
    with pytest.raises(TrainingError, match="run the same command again"):
        run_jobs(make(tmp_path, 3), die, folder=tmp_path, n_jobs=2)


def test_a_job_that_the_cluster_lost_is_a_failure(tmp_path, monkeypatch):
    @contextmanager
    def losing(workers, address):
        def submit(call, payload):
            future = Future()
            lost = payload[0].name == "job1"
            future.set_exception(ConnectionError("worker gone")) if lost else future.set_result(call(payload))
            return future

        yield submit

    monkeypatch.setitem(backends.BACKENDS, "ray", losing)
    results = run_jobs(make(tmp_path, 3), solve, folder=tmp_path, backend="ray")
    assert names(results) == ["job0", "job2"]
    assert results.failures[0].error == "ConnectionError: worker gone"
