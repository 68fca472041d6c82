/* SPDX-License-Identifier: Apache-2.0 */
/* test_doctor: what kvctl doctor makes of memory and huge pages. One thread; writes a file. */

#include "tools/ctl_doctor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1 << 20)

static char meminfo[] = "/tmp/kvhost-doctor-XXXXXX";
static struct doctor d;

static int setup(void **state)
{
	int fd = mkstemp(strcpy(meminfo, "/tmp/kvhost-doctor-XXXXXX"));

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	d = (struct doctor){.checks = json_array(), .meminfo = meminfo};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	json_decref(d.checks);
	json_decref(d.health);
	json_decref(d.config);
	return unlink(meminfo);
}

static void write_meminfo(unsigned total, unsigned unused, unsigned promised)
{
	FILE *f = fopen(meminfo, "we");

	assert_non_null(f);
	assert_true(fprintf(f,
			    "MemAvailable:    1048576 kB\nHugePages_Total:   %u\n"
			    "HugePages_Free:    %u\nHugePages_Rsvd:    %u\n"
			    "Hugepagesize:       2048 kB\n",
			    total, unused, promised) > 0);
	assert_int_equal(fclose(f), 0);
}

/* A daemon of two pools, of 64 MiB and of so much (0: what is free), in these states. */
static void write_daemon(const char *first, const char *second, json_int_t bytes, bool needs_huge)
{
	json_decref(d.health);
	json_decref(d.config);
	/* Of the first 60 MiB are pages: the rest is its index. */
	d.health =
	    json_pack("{s:I, s:[{s:s, s:s}, {s:s, s:s}]}", "memory_bytes", (json_int_t)60 * MIB,
		      "pools", "name", "a", "state", first, "name", "b", "state", second);
	d.config =
	    json_pack("{s:[{s:s, s:s}, {s:s, s:i}, {s:s, s:s}, {s:s, s:o}, {s:s, s:b}]}", "values",
		      "key", "pools[0].name", "value", "a", "key", "pools[0].pool_bytes", "value",
		      64 * MIB, "key", "pools[1].name", "value", "b", "key", "pools[1].pool_bytes",
		      "value", bytes ? json_integer(bytes) : json_null(), "key",
		      "core.require_hugepages", "value", (int)needs_huge);
	assert_non_null(d.health);
	assert_non_null(d.config);
}

static void expect(void (*check)(struct doctor *), const char *state, const char *is,
		   const char *needed, const char *command)
{
	json_t *row, *wanted = json_pack("{s:s, s:s, s:s?, s:s?}", "state", state, "is", is,
					 "needed", needed, "command", command);

	json_array_clear(d.checks);
	d.mend = false;
	check(&d);
	assert_int_equal(json_array_size(d.checks), 1);
	row = json_array_get(d.checks, 0);
	json_object_del(row, "check");
	if (!json_equal(row, wanted)) {
		json_dumpf(row, stderr, JSON_INDENT(1));
		json_dumpf(wanted, stderr, JSON_INDENT(1));
		fail_msg("this is not the diagnosis that was expected");
	}
	assert_int_equal(d.mend, !strcmp(state, "mend"));
	json_decref(wanted);
}

#define FOR_POOLS " for configured pools that have no memory yet"
#define OTHERS    "without them they are of pages that the kernel joins, or of small ones"
#define OR_REFUSED                                                                                 \
	"without them they are of pages that the kernel joins, or refused "                        \
	"(core.require_hugepages)"

static void memory_is_needed_for_pools_that_have_none_yet(void **state)
{
	(void)state;
	write_meminfo(0, 0, 0);
	expect(doctor_check_memory, "ok", "1 GiB available", NULL, NULL);
	write_daemon("declared", "declared", 32 * MIB, false);
	expect(doctor_check_memory, "ok", "1 GiB available", "96 MiB" FOR_POOLS, NULL);
	write_daemon("ready", "declared", 32 * MIB, false);
	expect(doctor_check_memory, "ok", "1 GiB available", "32 MiB" FOR_POOLS, NULL);
	write_daemon("ready", "ready", 32 * MIB, false);
	expect(doctor_check_memory, "ok", "1 GiB available", NULL, NULL);
	/* 1 GiB and 64 MiB. */
	write_daemon("declared", "declared", 1024 * MIB, false);
	expect(doctor_check_memory, "note", "1 GiB available", "1.1 GiB" FOR_POOLS,
	       "lower pool_bytes in kvhost.json, or end what uses the memory, unless huge pages "
	       "are set aside for them");
}

static void huge_pages_are_needed_for_pools_that_have_no_memory_yet(void **state)
{
	(void)state;
	write_meminfo(100, 16, 0);
	write_daemon("ready", "declared", 32 * MIB, false);
	expect(doctor_check_huge_pages, "ok", "100 of 2048 KiB, 16 free", "16 free" FOR_POOLS,
	       NULL);
	write_daemon("ready", "ready", 32 * MIB, false);
	write_meminfo(100, 0, 0);
	expect(doctor_check_huge_pages, "ok", "100 of 2048 KiB, 0 free", "0 free" FOR_POOLS, NULL);
}

static void pages_that_kv_ram_waits_for_are_no_pools(void **state)
{
	(void)state;
	write_meminfo(100, 48, 40);
	write_daemon("ready", "declared", 32 * MIB, false);
	expect(doctor_check_huge_pages, "note",
	       "100 of 2048 KiB, 8 free beside 40 that are promised",
	       "16 free" FOR_POOLS "; " OTHERS, "sysctl -w vm.nr_hugepages=108");
}

/* The kernel joins small ones, where it can. */
static void pools_without_them_may_be_refused_where_the_configuration_says_so(void **state)
{
	(void)state;
	write_meminfo(10, 8, 0);
	for (int needs = 0; needs < 2; needs++) {
		write_daemon("ready", "declared", 32 * MIB, needs);
		expect(doctor_check_huge_pages, "note", "10 of 2048 KiB, 8 free",
		       needs ? "16 free" FOR_POOLS "; " OR_REFUSED
			     : "16 free" FOR_POOLS "; " OTHERS,
		       "sysctl -w vm.nr_hugepages=18");
	}
	assert_int_equal(truncate(meminfo, 0), 0);
	write_daemon("ready", "declared", 32 * MIB, true);
	expect(doctor_check_huge_pages, "note", "this kernel has none", NULL,
	       "boot a kernel with CONFIG_HUGETLBFS");
}

static void nobody_knows_how_many_a_pool_takes_that_does_not_say(void **state)
{
	static const char needed[] =
	    "as many as all pools take; without them pools are made of small pages";

	(void)state;
	write_meminfo(0, 0, 0);
	expect(doctor_check_huge_pages, "note", "0 of 2048 KiB, 0 free", needed,
	       "sysctl -w vm.nr_hugepages=NUMBER");
	write_daemon("ready", "declared", 0, false);
	expect(doctor_check_huge_pages, "note", "0 of 2048 KiB, 0 free", needed,
	       "sysctl -w vm.nr_hugepages=NUMBER");
	write_daemon("ready", "ready", 0, false);
	expect(doctor_check_huge_pages, "ok", "0 of 2048 KiB, 0 free", "0 free" FOR_POOLS, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(memory_is_needed_for_pools_that_have_none_yet),
	    TEST(huge_pages_are_needed_for_pools_that_have_no_memory_yet),
	    TEST(pages_that_kv_ram_waits_for_are_no_pools),
	    TEST(pools_without_them_may_be_refused_where_the_configuration_says_so),
	    TEST(nobody_knows_how_many_a_pool_takes_that_does_not_say),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
