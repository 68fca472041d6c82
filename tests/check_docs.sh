#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The documents name what is there: links, files, the options of kvbench; the example in the README
# compiles. Speaks TAP.
set -eu
export LC_ALL=C

top=${srcdir:-.}
build=${builddir:-.}
documents="README.md ARCHITECTURE.md CONTRIBUTING.md NEWS.md docs/namespaces.md docs/protocol.md docs/reuse.md docs/tiers.md"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

number=0
# result NAME FILE: the test passed if FILE, what was wrong, is empty.
result()
{
	number=$((number + 1))
	if [ -s "$2" ]; then
		echo "not ok $number - $1"
		sed 's/^/# /' "$2"
	else
		echo "ok $number - $1"
	fi
}

# What stands outside of fences in a document.
prose()
{
	awk '/^```/ { inside = !inside; next } !inside' "$top/$1"
}

# The anchors of a document's headings, as they are written in links.
anchors()
{
	sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

check_links()
{
	prose "$1" | grep -o ']([^)]*)' | sed 's/^](//; s/)$//' | while read -r link; do
		case $link in *://*) continue ;; esac
		file=${link%%#*}
		anchor=${link#"$file"}
		target=$top/$1
		[ -z "$file" ] || target=$top/$(dirname "$1")/$file
		if [ ! -e "$target" ]; then
			echo "$1: there is no $link"
		elif [ -n "$anchor" ] && ! anchors "$target" | grep -qxF -- "${anchor#?}"; then
			echo "$1: no heading for $link"
		fi
	done
}

# Words in backticks that look like files of this tree. MODULE stands for any name.
check_names()
{
	prose "$1" | grep -o '`[^`]*`' | tr -d '`' | tr ' ' '\n' |
		grep -E '^[A-Za-z0-9_.*-]+(/[A-Za-z0-9_.*-]+)*/?$' | sort -u |
		while read -r name; do
			case $name in
			*[A-Z][A-Z]*.c) continue ;;
			.ci/*) [ -d "$top/.ci" ] || continue ;; # no part of a release archive
			shm/* | kernels/* | libclient/* | daemon/* | tools/* | tests/* | \
				examples/* | systemd/* | docs/* | build-aux/*) ;;
			*/*) continue ;;
			*.[ch] | *.def | *.sh | *.md | *.inc | *.am) ;;
			*) continue ;;
			esac
			case $name in
			# shellcheck disable=SC2086 # a name may be a pattern
			*/*) (cd "$top" && ls -d $name) ;;
			*) find "$top" -name "$name" | grep . ;;
			esac > "$work/found" 2>&1 || echo "$1: there is no $name"
		done
}

echo "1..4"

for document in $documents; do
	check_links "$document"
done > "$work/links"
result "every link of a document leads somewhere" "$work/links"

for document in $documents; do
	check_names "$document"
done > "$work/names"
result "every file that a document names exists" "$work/names"

awk '/^```c$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$top/README.md" > "$work/engine.c"
{
	[ -s "$work/engine.c" ] || echo "README.md: no example in C"
	${CC:-cc} -Wall -Wextra -Werror -fsyntax-only -I"$top/libclient" "$work/engine.c" 2>&1 ||
		echo "README.md: the example does not compile"
} > "$work/example"
result "the example in the README compiles" "$work/example"

{
	"$build/kvbench" --help | grep -oE '^ +--[a-z-]+' | tr -d ' ' | sort -u > "$work/options"
	[ -s "$work/options" ] || echo "kvbench --help names no option"
	sed 's/\\-/-/g' "$top/docs/man/kvbench.1" > "$work/page"
	while read -r option; do
		grep -qwF -e "$option" "$work/page" || echo "kvbench.1: $option is missing"
	done < "$work/options"
} > "$work/bench"
result "kvbench(1) has every option of kvbench" "$work/bench"
