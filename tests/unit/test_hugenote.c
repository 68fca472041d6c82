/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/tier/hugenote: what an operator reads about the memory that a pool got. */

#include "daemon/tier/hugenote.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check_note(const struct segment *got, uint64_t wanted, struct huge_pages host,
		       const char *want)
{
	char note[160];

	hugenote_write(note, sizeof(note), got, wanted, &host);
	assert_string_equal(note, want);
}

static void the_note_says_what_was_got_and_what_to_change(void **state)
{
	const uint64_t mib = 1024 * 1024;
	const struct segment small = {.page_bytes = 4096, .backing = SEGMENT_SMALL};
	const struct segment collapsed = {.page_bytes = 2 * 1024 * 1024,
					  .backing = SEGMENT_COLLAPSED};
	const struct segment huge = {.page_bytes = 2 * 1024 * 1024, .backing = SEGMENT_HUGETLB};
	const struct huge_pages none = {.page_bytes = 2 * mib};
	const struct huge_pages some = {.page_bytes = 2 * mib, .total = 300, .available = 12};
	const struct huge_pages large = {.page_bytes = 1024 * mib,
					 .total = 9,
					 .available = 9,
					 .unfit = "kv_ram_chunk_bytes and KV-RAM"};

	(void)state;
	check_note(&huge, 1024 * mib, some, "2 MiB huge pages");
	check_note(&small, 1024 * mib, none,
		   "4 KiB pages: no huge pages free (512 wanted, 0 free; "
		   "sysctl vm.nr_hugepages=512)");
	check_note(&small, 1024 * mib - 1, some,
		   "4 KiB pages: not enough huge pages free (512 wanted, 12 free; "
		   "sysctl vm.nr_hugepages=800)");
	check_note(&small, 2 * mib, some, "4 KiB pages: huge pages refused (1 wanted, 12 free)");
	check_note(&small, mib, (struct huge_pages){0}, "4 KiB pages: this host has no huge pages");
	check_note(&collapsed, 3 * mib, none,
		   "2 MiB pages made of small ones: no huge pages free (2 wanted, 0 free; "
		   "sysctl vm.nr_hugepages=2)");
	check_note(&collapsed, 3 * mib, large,
		   "2 MiB pages made of small ones: "
		   "huge pages of 1 GiB do not divide kv_ram_chunk_bytes and KV-RAM");
	check_note(NULL, 2 * mib, none,
		   "no memory: no huge pages free (1 wanted, 0 free; sysctl vm.nr_hugepages=1)");
}

static void the_host_is_read_without_contradiction(void **state)
{
	struct huge_pages host = hugenote_read();

	(void)state;
	assert_int_equal(host.page_bytes, segment_huge_page_bytes());
	assert_true(host.available <= host.total || host.total == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_note_says_what_was_got_and_what_to_change),
	    cmocka_unit_test(the_host_is_read_without_contradiction),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
