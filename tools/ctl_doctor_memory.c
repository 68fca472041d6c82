/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_doctor_memory: whether what the daemon has still to take is there: memory, and huge pages of
 * it. Both look at /proc/meminfo alone. One thread; blocks on that file.
 */

#include "tools/ctl_doctor.h"

#define TEXT_BYTES 256

void doctor_check_memory(struct doctor *d)
{
	unsigned long long available = 0, needed;
	char is[TEXT_BYTES], size[64], need[TEXT_BYTES];

	(void)doctor_pool_bytes(d, &needed);
	(void)doctor_number(d->meminfo, "MemAvailable", &available);
	ctl_size_text(available * 1024, size, sizeof(size));
	snprintf(is, sizeof(is), "%s available", size);
	ctl_size_text(needed, size, sizeof(size));
	snprintf(need, sizeof(need), "%s for configured pools that have no memory yet", size);
	/* Huge pages that are free count as used, and are looked at by themselves. */
	if (needed > available * 1024)
		doctor_say(d, "memory", DOCTOR_NOTE, is, need,
			   "lower pool_bytes in kvhost.json, or end what uses the memory, unless "
			   "huge pages are set aside for them");
	else
		doctor_say(d, "memory", DOCTOR_OK, is, needed ? need : NULL, NULL);
}

struct huge {
	unsigned long long page_bytes, total;
	unsigned long long available; /* free, and nobody's */
	unsigned long long promised;  /* free, but to come: KV-RAM that arrives has all of its */
};

static bool read_huge(const struct doctor *d, struct huge *out)
{
	unsigned long long kib = 0, total = 0, unused = 0, promised = 0;

	if (!doctor_number(d->meminfo, "Hugepagesize", &kib) || !kib)
		return false;
	(void)doctor_number(d->meminfo, "HugePages_Total", &total);
	(void)doctor_number(d->meminfo, "HugePages_Free", &unused);
	(void)doctor_number(d->meminfo, "HugePages_Rsvd", &promised);
	*out = (struct huge){.page_bytes = kib * 1024,
			     .total = total,
			     .available = unused > promised ? unused - promised : 0,
			     .promised = promised};
	return true;
}

void doctor_check_huge_pages(struct doctor *d)
{
	const char *otherwise = doctor_needs_huge(d)
				    ? "without them they are of pages that the kernel joins, or "
				      "refused (core.require_hugepages)"
				    : "without them they are of pages that the kernel joins, or of "
				      "small ones";
	char is[TEXT_BYTES], need[TEXT_BYTES], command[TEXT_BYTES], promised[64] = "";
	unsigned long long bytes, needed;
	bool known = doctor_pool_bytes(d, &bytes);
	struct huge h;

	if (!read_huge(d, &h)) {
		doctor_say(d, "huge pages", DOCTOR_NOTE, "this kernel has none", NULL,
			   "boot a kernel with CONFIG_HUGETLBFS");
		return;
	}
	needed = (bytes + h.page_bytes - 1) / h.page_bytes;
	if (h.promised)
		snprintf(promised, sizeof(promised), " beside %llu that are promised", h.promised);
	snprintf(is, sizeof(is), "%llu of %llu KiB, %llu free%s", h.total, h.page_bytes / 1024,
		 h.available, promised);
	snprintf(need, sizeof(need), "%llu free for configured pools that have no memory yet%s%s",
		 needed, needed > h.available ? "; " : "", needed > h.available ? otherwise : "");
	snprintf(command, sizeof(command), "sysctl -w vm.nr_hugepages=%llu",
		 h.total + (needed > h.available ? needed - h.available : 0));
	if (needed > h.available)
		doctor_say(d, "huge pages", DOCTOR_NOTE, is, need, command);
	else if (h.total == 0 && !known)
		doctor_say(d, "huge pages", DOCTOR_NOTE, is,
			   "as many as all pools take; without them pools are made of small pages",
			   "sysctl -w vm.nr_hugepages=NUMBER");
	else
		doctor_say(d, "huge pages", DOCTOR_OK, is, need, NULL);
}
