"""Runs Flower for the differential tests, in its own environment; imports nothing of sbp2p.

Reads a list of jobs from standard input and writes a list of results. A job has `models` (lists of
numbers), their `dtype`, a `rule`, its `options`, and `samples`, a number for each model; its result
is {"result": numbers or null, "dtype": name} or {"error": what Flower raised}. Rules named
`aggregate_*` are functions of the older API (flwr.server), the others are strategies of the current
one (flwr.serverapp). Numbers that JSON has not are the strings nan, inf and -inf.
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import aggregate
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity


def main() -> None:
    """Do the jobs."""
    logging.disable(logging.CRITICAL)
    # as Flower's own server does before it makes a message
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    results = [run(job) for job in json.load(sys.stdin)]
    json.dump(results, sys.stdout)


def run(job: dict) -> dict:
    """Do one job."""
    models = [np.array([float(x) for x in model]).astype(job["dtype"]) for model in job["models"]]
    samples = job.get("samples") or [1] * len(models)
    try:
        merged = merge(job["rule"], job.get("options", {}), models, samples)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if merged is None:
        return {"result": None, "dtype": None}
    values = [value if np.isfinite(value) else str(value) for value in merged.tolist()]
    return {"result": values, "dtype": str(merged.dtype)}


def merge(rule: str, options: dict, models: list, samples: list) -> np.ndarray | None:
    """Return what Flower makes of the models, or None if it makes nothing of them."""
    if rule.startswith("aggregate_"):
        results = [([model], count) for model, count in zip(models, samples, strict=True)]
        if rule == "aggregate_bulyan":
            options = {**options, "aggregation_rule": aggregate.aggregate_krum, "to_keep": 0}
        return getattr(aggregate, rule)(results, **options)[0]
    replies = [
        Message(
            content=RecordDict(
                {
                    "arrays": ArrayRecord({"weight": Array(model)}),
                    "metrics": MetricRecord({"num-examples": count}),
                }
            ),
            dst_node_id=index,
            message_type="train",
        )
        for index, (model, count) in enumerate(zip(models, samples, strict=True))
    ]
    arrays, _ = getattr(strategy, rule)(**options).aggregate_train(1, replies)
    return None if arrays is None else arrays["weight"].numpy()


if __name__ == "__main__":
    main()
