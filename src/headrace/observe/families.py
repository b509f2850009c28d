# SPDX-License-Identifier: Apache-2.0
"""Metrics in the Prometheus client's shapes, every sample with the same base labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from headrace.observe.histogram import Histogram


class Families:
    """Makes metrics whose names begin with `prefix`. What splits a metric is one further label."""

    def __init__(self, prefix: str, base: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._names = list(base)
        self._values = list(base.values())

    def gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """`name` is without the `_total` that it is shown with."""
        family = CounterMetricFamily(self._prefix + name, text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(self._prefix + name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def histogram(self, name: str, text: str, histogram: Histogram, largest: float = float("inf")) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, text, labels=self._names)
        family.add_metric(self._values, _buckets(histogram, largest), histogram.total)
        return family

    def histograms(self, name: str, text: str, label: str, values: Mapping[str, Histogram]) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, text, labels=[*self._names, label])
        for key, histogram in values.items():
            family.add_metric([*self._values, key], _buckets(histogram, float("inf")), histogram.total)
        return family


def _buckets(histogram: Histogram, largest: float) -> Sequence[tuple[str, float]]:
    return [
        (floatToGoString(bound), count)  # type: ignore[no-untyped-call]
        for bound, count in histogram.cumulative(largest)
    ]
