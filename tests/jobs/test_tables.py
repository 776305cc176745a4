"""The tables of jobs are made once, however many replicas start together."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import make_url

from batuta.jobs.records import JobRecords
from store.conftest import postgres, tell

__all__ = ["postgres"]


def test_replicas_that_start_together_make_the_tables_once(postgres):
    url = make_url(postgres).set(drivername="postgresql+psycopg")
    for _ in range(5):
        tell(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(JobRecords, [url] * 8))
        for records in made:
            assert records.count_events("none") == 0
            records.close()
