#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What a page costs that is taken, given back, given up, sent to the tier below and fetched from
# there, among few objects and among many, in both orders. A line of JSON each, and one for each
# ratio that must hold:
#   instructions (needs valgrind): at the large size within 10 % of the small one, and learned at
#   most twice lru;
#   time, with nothing in a cache: at the large size within 2 times that at 10^5.
# And what a retained state of a hybrid pool costs, likewise, among 10^2 (lru) or 10^4 (learned)
# and among 10^5 of them.
# usage: state_cost.sh [count|states|time|all [SMALL [LARGE]]]; run it where state_cost is, or set
# builddir.
# All of it takes half an hour and some 5 GB of memory.
set -eu

what=${1:-all}
small=${2:-10000}
large=${3:-10000000}
program=${builddir:-.}/tests/callgrind/state_cost
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT INT TERM
failed=0

field() { # name: of a line of JSON
	sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p"
}

instructions() { # of what, program and arguments
	of=$1
	shift
	line=$(valgrind --tool=callgrind --instr-atstart=no --collect-atstart=no \
		--callgrind-out-file="$directory/out" "$@" 2>"$directory/err")
	total=$(sed -n 's/^summary: \([0-9]*\).*/\1/p; s/^totals: \([0-9]*\).*/\1/p' \
		"$directory/out" | sort -n | tail -n 1)
	echo "$total $(echo "$line" | field "$of")" | awk '{ printf "%.1f", $1 / $2 }'
}

count() { # operation order objects
	instructions pages "$program" "$1" "$2" "$3"
}

count_state() { # operation order states
	instructions measured "${program%state_cost}states_cost" "$1" "$2" "$3"
}

tell() { # operation order objects what value
	echo "{\"operation\": \"$1\", \"order\": \"$2\", \"objects\": $3, \"$4\": $5}"
}

judge() { # text value of limit
	line=$(echo "$2 $3 $4" | awk -v text="$1" '{
		printf "{\"ratio\": \"%s\", \"value\": %.3f, \"limit\": %s, \"met\": %s}", text,
			$1 / $2, $3, $1 / $2 <= $3 ? "true" : "false" }')
	echo "$line"
	case $line in *true*) ;; *) failed=1 ;; esac
}

counts() {
	for operation in take give evict spill fetch; do
		for order in lru learned; do
			at_small=$(count "$operation" "$order" "$small")
			tell "$operation" "$order" "$small" instructions_a_page "$at_small"
			at_large=$(count "$operation" "$order" "$large")
			tell "$operation" "$order" "$large" instructions_a_page "$at_large"
			judge "$operation $order: large to small" "$at_large" "$at_small" 1.1
			[ "$order" = lru ] && of_lru=$at_large
		done
		judge "$operation: learned to lru" "$at_large" "$of_lru" 2
	done
}

# In the learned order states grow older while others are found, at most 36 for each open: with few
# of them there are fewer ages. Every 50th open makes the table, however long its prompt is.
states() {
	for operation in take give down up; do
		for order in lru learned; do
			few=100
			[ "$order" = learned ] && few=10000
			at_small=$(count_state "$operation" "$order" "$few")
			tell "state $operation" "$order" "$few" instructions_a_state "$at_small"
			at_large=$(count_state "$operation" "$order" 100000)
			tell "state $operation" "$order" 100000 instructions_a_state "$at_large"
			judge "state $operation $order: 100000 to $few" "$at_large" "$at_small" 1.1
			[ "$order" = lru ] && of_lru=$at_large
		done
		[ "$operation" = take ] ||
			judge "state $operation: learned to lru" "$at_large" "$of_lru" 2
	done
}

measure() {
	for operation in take give evict spill fetch; do
		for order in lru learned; do
			line=$("$program" "$operation" "$order" 100000 time)
			at_small=$(echo "$line" | field ns_a_page)
			echo "$line"
			line=$("$program" "$operation" "$order" "$large" time)
			at_large=$(echo "$line" | field ns_a_page)
			echo "$line"
			judge "$operation $order: time at $large to that at 100000" "$at_large" \
				"$at_small" 2
		done
	done
}

case $what in
count) counts ;;
states) states ;;
time) measure ;;
all) counts && states && measure ;;
*) echo "usage: state_cost.sh [count|states|time|all [SMALL [LARGE]]]" >&2 && exit 2 ;;
esac
exit $failed
