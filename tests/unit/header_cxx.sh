#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the public header as C++, in an old and a new version of it. Skips without a compiler.
srcdir=${srcdir:-.}
cxx=${CXX:-c++}
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

echo 1..2
n=0
for std in c++11 c++17; do
	n=$((n + 1))
	if ! command -v "${cxx%% *}" >/dev/null 2>&1; then
		echo "ok $n - the_header_compiles_as_$std # SKIP no C++ compiler"
	elif $cxx -std=$std -Wall -Wextra -pedantic -Werror -I"$srcdir" -c -o "$out" \
		"$srcdir/tests/unit/header_cxx.cc"; then
		echo "ok $n - the_header_compiles_as_$std"
	else
		echo "not ok $n - the_header_compiles_as_$std"
	fi
done
