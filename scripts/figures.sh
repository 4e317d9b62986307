#!/usr/bin/env bash
# The figures of docs/performance.md that tests measure: listings, what a commit pays for the index, forks.
# Run it alone, on a machine that does nothing else. The rest is measured by `stepwell bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
export STEPWELL_SESSIONS="${STEPWELL_SESSIONS:-10000}"
cargo test --release --test store_catalog -- --ignored --nocapture figures
cargo test --release --test store_fork -- --ignored --nocapture figures_of_forks
