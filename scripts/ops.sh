#!/bin/sh
# Has Prometheus check the files in ops/: the rules, their tests, and, with a daemon that it
# scrapes, the metrics, each query of the dashboard and each alert.
set -eu
cd "$(dirname "$0")/.."

promtool check rules --lint-fatal ops/alerts.yml
promtool check config --lint-fatal ops/prometheus.yml
promtool test rules ops/alerts_test.yml
python3 scripts/ops_queries.py
