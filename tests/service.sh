#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The unit that would be installed is one that systemd accepts without a word. Speaks TAP.
set -eu

unit=${builddir:-.}/systemd/kvhostd.service
echo "1..1"
if [ ! -f "$unit" ] || ! command -v systemd-analyze >/dev/null; then
	echo "ok 1 - systemd accepts the unit # SKIP no unit was built, or no systemd-analyze"
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A program that is not installed would be an error of its own.
sed 's|^ExecStart=.*|ExecStart=/bin/true|' "$unit" > "$work/kvhostd.service"
said=$(systemd-analyze verify --man=no "$work/kvhostd.service" 2>&1) || said="$said (refused)"
if [ -z "$said" ]; then
	echo "ok 1 - systemd accepts the unit"
else
	echo "not ok 1 - systemd accepts the unit"
	printf '%s\n' "$said" | sed 's/^/# /'
fi
