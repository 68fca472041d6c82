#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Instructions per page taken, given back and given up, in pools of two sizes and in both orders;
# with the ratios that must hold: at the large size within 10 % of the small one, learned at most
# twice lru. Needs valgrind. usage: state_cost.sh [SMALL [LARGE]]; run it where state_cost is, or
# set builddir.
set -eu

small=${1:-10000}
large=${2:-10000000}
program=${builddir:-.}/tests/callgrind/state_cost
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT INT TERM
failed=0

instructions() { # operation order pages
	operations=$(valgrind --tool=callgrind --instr-atstart=no --collect-atstart=no \
		--callgrind-out-file="$directory/out" "$program" "$1" "$2" "$3" 2>"$directory/err" |
		sed -n 's/^operations //p')
	total=$(sed -n 's/^summary: \([0-9]*\).*/\1/p; s/^totals: \([0-9]*\).*/\1/p' \
		"$directory/out" | sort -n | tail -n 1)
	echo "$total $operations" | awk '{ printf "%.1f", $1 / $2 }'
}

judge() { # text ratio limit
	verdict=$(echo "$2 $3" | awk '{ print ($1 <= $2) ? "met" : "missed" }')
	echo "$1 ratio $2 limit $3 $verdict"
	[ "$verdict" = met ] || failed=1
}

for operation in take give evict; do
	for order in lru learned; do
		at_small=$(instructions "$operation" "$order" "$small")
		at_large=$(instructions "$operation" "$order" "$large")
		echo "$operation $order: $at_small instructions a page at $small pages," \
			"$at_large at $large"
		judge "$operation $order: large to small" \
			"$(echo "$at_large $at_small" | awk '{ printf "%.3f", $1 / $2 }')" 1.1
		[ "$order" = lru ] && of_lru=$at_large
	done
	judge "$operation: learned to lru" \
		"$(echo "$at_large $of_lru" | awk '{ printf "%.3f", $1 / $2 }')" 2
done
exit $failed
