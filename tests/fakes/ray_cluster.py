"""A Ray cluster of one node on the loopback, with two cores."""

import os
from contextlib import contextmanager

import pytest

_STARTS = 6


@contextmanager
def open_ray_cluster(*modules):
    """Ray, connected; skips where it is not installed.

    Args:
        modules: of tests, which actors cannot import: what they define travels by value.
    """
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    for _ in range(_STARTS):  # Ray itself gives its node 30 s, which a busy machine may not have
        try:
            ray.init(
                address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                configure_logging=False, _node_ip_address="127.0.0.1", object_store_memory=80 * 2**20,
            )  # fmt: skip
            break
        except Exception as error:  # Ray raises no other class
            if "timed out during startup" not in str(error):
                raise
            _end_half_started(error)
            ray.shutdown()
    else:
        pytest.skip(f"Ray's node did not start in {_STARTS} x 30 s: the machine is too busy")
    yield ray
    ray.shutdown()


def _end_half_started(error):
    """Ends the processes of a node that did not start in time; Ray leaves them, and the next start is slower."""
    trace = error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("self")
        if hasattr(node, "kill_all_processes"):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        trace = trace.tb_next
