#!/bin/sh
# What sharded scans are checked and timed by on two GPUs, in some eight minutes:  sh benchmarks/two_gpus.sh FOLDER
# Each command appends lines of JSON to a file of FOLDER, and ends with status 1 where something is wrong.
set -u
out=${1:?a folder for the results}
ranks=${2:-2}
mkdir -p "$out"
status=0
run() {
    name=$1
    shift
    echo "== $name: $*"
    timeout 150 python -m benchmarks distributed --ranks "$ranks" --out "$out/$name.jsonl" "$@" || status=1
}
# Values and gradients of random calls, CUDA graphs, errors of all ranks and of one, the order of backward passes.
run checks --checks --requests 300 --seconds 100
# Calls that differ, by either method: every rank raises.
run mismatches --mismatches 12 --seconds 60
# Ranks that are killed, that are absent and that end with an error: the others raise, none hangs.
run faults --faults 6 --seconds 90
# Host times: one pass took 13 us of sums and 14 us of recurrences, two passes 201 and 242 us, on a slow host.
run host --only "64 x 65536" --seconds 60
# Rows: 0.97 to 1.00 of one GPU in one pass, 0.94 to 1.04 with gradients.
run rows --only "rows 32768 x 32768" --seconds 90
# Columns: 0.82 to 0.90, and 0.75 to 0.90 with gradients.
run columns --only "columns 8 x 32768 x 2560" --seconds 60
# The same bits in 2,000 scans beside collectives on another stream, and in a replayed CUDA graph.
run soak --soak 2000 --seconds 60
exit $status
