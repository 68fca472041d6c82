#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Draws hits against memory of a trace. usage: reuse.sh TRACE OUT.svg; needs kvbench and gnuplot.
set -eu

here=$(dirname "$0")
data=$(mktemp)
trap 'rm -f "$data"' EXIT INT TERM
${KVBENCH:-kvbench} order "$1" --pages-a-block 1 --made-requests 1 --made-sizes 1 |
	awk '$2 == "room" { room = $3 }
	     $1 ~ /^order\.1\./ && $2 == "lru" { lru = $3 }
	     $1 ~ /^order\.1\./ && $2 == "learned" { learned = $3 }
	     $1 ~ /^order\.1\./ && $2 == "optimum" { print room, lru, learned, $3 }' >"$data"
gnuplot -e "data='$data'" "$here/reuse.gp" >"$2"
