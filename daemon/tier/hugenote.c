/* SPDX-License-Identifier: Apache-2.0 */
/* hugenote: reads what sysfs says of huge pages and puts it in words. Reading may block. */

#include "daemon/tier/hugenote.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/panic.h"

#define SIZE_TEXT_BYTES 32

static uint64_t read_count(uint64_t page_bytes, const char *file)
{
	char path[128], text[32];
	unsigned long long value = 0;
	char *end;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
		 page_bytes / 1024, file);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fgets(text, sizeof(text), f)) {
		errno = 0;
		value = strtoull(text, &end, 10);
		if (errno || end == text)
			value = 0;
	}
	fclose(f);
	return value;
}

struct huge_pages hugenote_read(void)
{
	struct huge_pages host = {.page_bytes = segment_huge_page_bytes()};
	uint64_t free_pages, reserved, most_surplus, surplus;

	if (host.page_bytes == 0)
		return host;
	host.total = read_count(host.page_bytes, "nr_hugepages");
	free_pages = read_count(host.page_bytes, "free_hugepages");
	reserved = read_count(host.page_bytes, "resv_hugepages");
	host.available = free_pages > reserved ? free_pages - reserved : 0;
	most_surplus = read_count(host.page_bytes, "nr_overcommit_hugepages");
	surplus = read_count(host.page_bytes, "surplus_hugepages");
	host.surplus = most_surplus > surplus ? most_surplus - surplus : 0;
	return host;
}

static void size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes)
{
	static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB"};
	unsigned int u = 0;

	while (u < 3 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		u++;
	}
	snprintf(out, SIZE_TEXT_BYTES, "%" PRIu64 " %s", bytes, unit[u]);
}

static void reason_text(char *out, size_t out_bytes, uint64_t wanted_bytes,
			const struct huge_pages *host)
{
	char size[SIZE_TEXT_BYTES];
	uint64_t wanted, missing;

	if (host->page_bytes == 0) {
		snprintf(out, out_bytes, "this host has no huge pages");
		return;
	}
	if (host->unfit) {
		size_text(size, host->page_bytes);
		snprintf(out, out_bytes, "huge pages of %s do not divide %s", size, host->unfit);
		return;
	}
	wanted = wanted_bytes / host->page_bytes + (wanted_bytes % host->page_bytes != 0);
	if (wanted <= host->available) {
		snprintf(out, out_bytes,
			 "huge pages refused (%" PRIu64 " wanted, %" PRIu64 " free)", wanted,
			 host->available);
		return;
	}
	missing = wanted - host->available;
	snprintf(out, out_bytes,
		 "%s huge pages free (%" PRIu64 " wanted, %" PRIu64
		 " free; sysctl vm.nr_hugepages=%" PRIu64 ")",
		 host->available ? "not enough" : "no", wanted, host->available,
		 host->total + missing);
}

void hugenote_write(char *note, size_t note_bytes, const struct segment *got, uint64_t wanted_bytes,
		    const struct huge_pages *host)
{
	char size[SIZE_TEXT_BYTES], reason[128];

	must(note_bytes > 0);
	reason_text(reason, sizeof(reason), wanted_bytes, host);
	if (!got) {
		snprintf(note, note_bytes, "no memory: %s", reason);
		return;
	}

	size_text(size, got->page_bytes);
	switch (got->backing) {
	case SEGMENT_HUGETLB:
		snprintf(note, note_bytes, "%s huge pages", size);
		return;
	case SEGMENT_COLLAPSED:
		snprintf(note, note_bytes, "%s pages made of small ones: %s", size, reason);
		return;
	case SEGMENT_SMALL:
		snprintf(note, note_bytes, "%s pages: %s", size, reason);
		return;
	}
	cannot_happen("a segment has no backing");
}
