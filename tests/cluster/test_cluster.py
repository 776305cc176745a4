"""Replicas on hosts of their own: load, kills, cut links. `make test-cluster` shows the figures.

The tests follow each other on one cluster; each leaves it whole.
"""

import signal
import statistics
import time
from collections import Counter
from decimal import Decimal

import pytest

from cluster.conftest import PRICE

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]


def told(what):
    print(f"  {what}", flush=True)


def statuses(results):
    return dict(Counter(result["status"] for result in results))


def test_both_replicas_serve_and_every_call_is_billed_once(cluster):
    before_usd, before_calls = cluster.billed()
    results = cluster.results(cluster.load("chat", requests=400, concurrency=40, tag="plain"))
    cluster.settle()
    usd, calls = cluster.billed()
    began, ended = cluster.job_times("plain")
    served = {
        name: cluster.hosts[name].run("ss", "-tn", "state", "established").count(":8765")
        for name in ("one", "two")
    }
    told(
        f"400 requests through HAProxy: {statuses(results)}; connections {served}; provider {len(ended)} calls, ledger {calls - before_calls}, ${usd - before_usd}"
    )
    assert statuses(results) == {200: 400}
    assert all(served.values()), "both replicas were used"
    assert len(began) == len(ended) == calls - before_calls == 400
    assert usd - before_usd == 400 * PRICE


def test_a_rate_holds_exactly_over_both_replicas(cluster):
    key = cluster.make_key("rated", "--rpm", "50")
    results = cluster.results(
        cluster.load("chat", requests=200, concurrency=50, tag="rated", key=key)
    )
    found = statuses(results)
    codes = {r["code"] for r in results if r["status"] == 429}
    told(f"a key with 50 requests a minute, 200 asked at once: {found}")
    assert found == {200: 50, 429: 150}
    assert codes == {"rate_limit_exceeded"}


def test_a_budget_holds_to_the_cent_over_both_replicas(cluster):
    """Reserving is by the most that a call may cost: fewer are let through, never more."""
    key = cluster.make_key("poor", "--per-day", "0.05", "--tenant", "poor")
    results = cluster.results(
        cluster.load("chat", requests=300, concurrency=50, tag="poor", key=key)
    )
    cluster.settle()
    spent = Decimal(cluster.sql("SELECT coalesce(sum(usd), 0) FROM ledger WHERE tenant = 'poor'"))
    counted = (
        Decimal(
            cluster.sql("SELECT max(spent) FROM spending WHERE account LIKE 'tenant:poor'") or 0
        )
        / 10**9
    )
    answered = statuses(results).get(200, 0)
    told(f"a key with $0.05 a day, 300 asked: {statuses(results)}, billed ${spent}")
    assert 0 < spent <= Decimal("0.05")
    assert spent == answered * PRICE
    assert counted in {spent, 0}
    assert {r["code"] for r in results if r["status"] == 429} == {"budget_exceeded"}


def test_a_providers_limit_holds_over_both_replicas(cluster):
    """The worker `narrow` takes 5 calls at a time, however many replicas ask it."""
    began = time.monotonic()
    results = cluster.results(
        cluster.load("chat", requests=60, concurrency=60, tag="narrow", model="worker/narrow")
    )
    seconds = time.monotonic() - began
    told(f"60 calls of a worker that takes 5 at a time: {statuses(results)} in {seconds:.1f} s")
    assert statuses(results) == {200: 60}
    assert seconds >= 60 / 5 * 0.4


def test_a_killed_host_costs_an_error_and_a_retry_and_no_job(cluster):
    jobs = cluster.results(
        cluster.load(
            "background", requests=30, concurrency=30, tag="before-kill", model="batuta-ultra"
        )
    )
    ids = [job["id"] for job in jobs if job["status"] == 200]
    assert len(ids) == 30
    streams = cluster.load("stream", requests=60, concurrency=60, tag="kill", retries=6, pause=1)
    time.sleep(4)
    cluster.hosts["one"].link(up=False)
    cluster.hosts["one"].kill(signal.SIGKILL)
    cluster.hosts["one"].link(up=True)
    found = cluster.results(streams)
    broken = [r for r in found if r["errors"]]
    ended = cluster.results(
        cluster.load("follow", requests=30, concurrency=30, ids=ids, patience=90)
    )
    cluster.start_gateway("one")
    cluster.wait_until_ready("one")
    told(
        f"host one killed under 60 streams: {len(broken)} clients got an error, {statuses(found)} after retries"
    )
    told(f"30 background jobs it had acknowledged: {dict(Counter(job['status'] for job in ended))}")
    assert statuses(found) == {200: 60}
    assert all(not r["error"] for r in found)
    assert 10 <= len(broken) <= 50, "those of the dead host, and only those"
    assert {job["status"] for job in ended} == {"completed"}
    check_money(cluster, "before-kill", 3 * 30, most_again=30)


def check_money(cluster, tag, calls, most_again):
    """Finished calls of jobs are not made again; only those in flight at a death are."""
    cluster.settle()
    began, ended = cluster.job_times(tag)
    told(f"the provider's calls of them: {len(began)} begun for {calls} wanted")
    assert len(ended) >= calls
    assert len(began) - calls <= most_again


def test_a_link_cut_for_ten_seconds_loses_nothing(cluster):
    jobs = cluster.results(
        cluster.load(
            "background", requests=20, concurrency=20, tag="before-cut", model="batuta-ultra"
        )
    )
    ids = [job["id"] for job in jobs if job["status"] == 200]
    load = cluster.load("chat", seconds=25, concurrency=20, tag="cut", retries=10, pause=1)
    time.sleep(3)
    cluster.hosts["two"].link(up=False)
    time.sleep(10)
    cluster.hosts["two"].link(up=True)
    found = cluster.results(load)
    cluster.wait_until_ready("one", "two")
    ended = cluster.results(
        cluster.load("follow", requests=len(ids), concurrency=20, ids=ids, patience=90)
    )
    broken = sum(bool(r["errors"]) for r in found)
    slow = sorted(r["seconds"] for r in found)
    told(
        f"host two cut off for 10 s under load: {len(found)} requests, {broken} needed a retry, {statuses(found)}; the slowest answer {slow[-1]:.1f} s"
    )
    told(f"{len(ids)} jobs: {dict(Counter(job['status'] for job in ended))}")
    assert len(ids) == 20
    assert statuses(found).keys() == {200}
    assert {job["status"] for job in ended} == {"completed"}
    check_money(cluster, "before-cut", 3 * 20, most_again=20)


def test_a_restart_of_postgres_loses_no_job_and_no_money(cluster):
    jobs = cluster.results(
        cluster.load(
            "background", requests=20, concurrency=20, tag="before-restart", model="batuta-ultra"
        )
    )
    ids = [job["id"] for job in jobs if job["status"] == 200]
    before_usd, before_calls = cluster.billed()
    load = cluster.load("chat", seconds=20, concurrency=20, tag="restart", retries=40, pause=1)
    time.sleep(3)
    cluster.stop_postgres("immediate")
    time.sleep(2)
    cluster.start_postgres()
    found = cluster.results(load)
    cluster.wait_until_ready("one", "two")
    ended = cluster.results(
        cluster.load("follow", requests=len(ids), concurrency=20, ids=ids, patience=90)
    )
    cluster.settle()
    refused = Counter((e["status"], e.get("code")) for r in found for e in r["errors"])
    usd, calls = cluster.billed()
    _, job_times = cluster.job_times("restart question")
    _, of_jobs = cluster.job_times("before-restart")
    told(
        f"PostgreSQL restarted at once under load: {len(found)} requests, {statuses(found)} after retries; refused meanwhile {dict(refused)}"
    )
    told(
        f"the ledger grew by {calls - before_calls} calls and ${usd - before_usd}; the provider ended {len(job_times)} and {len(of_jobs)} of the jobs"
    )
    assert len(ids) == 20
    assert statuses(found).keys() == {200}
    assert {job["status"] for job in ended} == {"completed"}
    assert usd - before_usd == (calls - before_calls) * PRICE
    assert calls - before_calls <= len(job_times) + len(of_jobs), "nothing is counted twice"
    answered = len(found)
    assert calls - before_calls >= answered, "and no answered request is missing"


def test_without_redis_each_replica_takes_its_share(cluster):
    key = cluster.make_key("shared", "--rpm", "40")
    cluster.redis.terminate()
    cluster.redis.wait(10)
    results = cluster.results(
        cluster.load("chat", requests=150, concurrency=30, tag="no-redis", key=key)
    )
    cluster.start_redis()
    time.sleep(6)
    again = cluster.results(cluster.load("chat", requests=20, concurrency=5, tag="redis-again"))
    told(f"Redis away: of 40 a minute {statuses(results)}; back: {statuses(again)}")
    assert statuses(results)[200] <= 40
    assert statuses(results)[200] >= 20
    assert statuses(again) == {200: 20}


@pytest.mark.parametrize("streams", [200, 1000])
def test_streams_arrive_in_time(cluster, streams):
    found = cluster.results(
        cluster.load(
            "stream", requests=streams, concurrency=streams, tag=f"many-{streams}", retries=0
        )
    )
    delays = sorted(d for r in found for d in r.get("delays", ()))
    lost = sum(bool(r["errors"]) or r["status"] != 200 for r in found)
    centiles = statistics.quantiles(delays, n=100)
    told(
        f"{streams} streams over two replicas, {len(delays)} chunks: p50 {centiles[49]:.1f} ms, p99 {centiles[98]:.1f} ms, lost {lost}"
    )
    assert lost == 0
    assert len(delays) == streams * 20


def test_the_ledger_is_the_sum_of_the_runs(cluster):
    cluster.settle()
    runs = Decimal(cluster.sql("SELECT sum(usd) FROM runs"))
    ledger = Decimal(cluster.sql("SELECT sum(usd) FROM ledger"))
    lost = cluster.sql("SELECT count(*) FROM ledger WHERE kind = 'lost'")
    twice = cluster.sql(
        "SELECT count(*) FROM (SELECT run_id, line FROM ledger GROUP BY 1, 2 HAVING count(*) > 1) AS x"
    )
    told(
        f"runs ${runs}, ledger ${ledger}, runs lost with their process {lost}, lines counted twice {twice}"
    )
    assert runs == ledger
    assert twice == "0"
