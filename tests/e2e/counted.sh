#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every counter of the table moves in some test. Programs that start a daemon note the names of
# those that were not 0 (tests/e2e/daemon.c); what no program noted fails here. A counter whose
# reason is gone, or that the daemon forgets to publish, is found so. Runs after all of them; when
# some have not run it says nothing.
#
# Called by make check with $srcdir, $counted_folder and $counted_programs.

set -u
table=$srcdir/daemon/counters.def

echo "1..1"

# A counter that only a fault moves, with that fault. Nothing else is allowed to stay at 0.
faults='
pool_refused_references: a reference taken back twice by the daemon; tests require 0
pool_hash_collisions: two equal keyed hashes of 128 bits; tests/unit/test_collisions.c keeps fewer bits
'

if [ "$(id -u)" -ne 0 ]; then
	echo "ok 1 - every counter moves in some test # SKIP other users' sessions need root"
	exit 0
fi
for program in $counted_programs; do
	if [ ! -e "$counted_folder/${program##*/}" ]; then
		echo "ok 1 - every counter moves in some test # SKIP ${program##*/} has not run"
		exit 0
	fi
done

names=$(sed -n 's/^\(POOL_\)\{0,1\}\(COUNTER\|HISTOGRAM\)(\([a-z0-9_]*\),.*/\3/p
	s/^NAMESPACE_GAUGE(\([a-z0-9_]*\), ".*/\1/p' "$table")
moved=$(for program in $counted_programs; do cat "$counted_folder/${program##*/}"; done | sort -u)
# Not asked for where the host gave no huge pages to the test that moves them.
skipped=
if grep -q '^SKIP: .* a_hole_without_memory_behind_it_ends_the_session' \
	"${counted_folder%/*}/hostile/test_memory.log"; then
	skipped='faults_guarded sessions_closed_fault'
fi
result=ok
for name in $names; do
	if printf '%s\n' "$moved" | grep -qx "$name"; then
		if printf '%s' "$faults" | grep -q "^$name:"; then
			echo "# $name moved: a fault of the daemon"
			result="not ok"
		fi
	elif ! printf '%s' "$faults" | grep -q "^$name:" &&
		! printf '%s\n' $skipped | grep -qx "$name"; then
		echo "# no test moves $name"
		result="not ok"
	fi
done
if [ "$(printf '%s\n' "$names" | wc -l)" -lt 100 ]; then
	echo "# the table was not read"
	result="not ok"
fi
echo "$result 1 - every counter moves in some test"
