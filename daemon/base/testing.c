/* SPDX-License-Identifier: Apache-2.0 */

/*
 * testing: the state of failpoints and protection switches, in the test library alone. A point may
 * be passed on any thread; arming and switching happen while nothing else runs. Nothing blocks.
 *
 * A whole program of that library is told by its environment, before main:
 * KVHOST_TEST_PROTECTION_OFF=NAME switches one protection off, KVHOST_TEST_FAILPOINT=
 * NAME:SKIP:TIMES arms one point, or several with commas between. A name that is none ends the
 * program. Both variables are gone afterwards: the configuration refuses those that it does not
 * know.
 */

#include "daemon/base/testing.h"

#ifdef KVHOST_TESTING

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"

struct failpoint_state {
	_Atomic unsigned passes;
	unsigned from; /* the first pass that fails */
	unsigned times;
};

static struct failpoint_state failpoints[FAILPOINT_COUNT];

static const char *const failpoint_texts[] = {
#define FAILPOINT(name, text) [FAILPOINT_##name] = (text),
#include "daemon/base/failpoints.def"
#undef FAILPOINT
};

static const char *const failpoint_names[] = {
#define FAILPOINT(name, text) [FAILPOINT_##name] = #name,
#include "daemon/base/failpoints.def"
#undef FAILPOINT
};

static const char *const protection_names[] = {
#define PROTECTION(name, kind, text) [PROTECTION_##name] = #name,
#include "tests/protections.def"
#undef PROTECTION
};

bool protection_off[PROTECTION_COUNT];

bool failpoint_hit(enum failpoint_name name)
{
	struct failpoint_state *f = &failpoints[name];
	unsigned pass;

	must(name < FAILPOINT_COUNT);
	pass = atomic_fetch_add_explicit(&f->passes, 1, memory_order_relaxed);
	return pass >= f->from && pass - f->from < f->times;
}

void failpoint_arm(enum failpoint_name name, unsigned skip, unsigned times)
{
	must(name < FAILPOINT_COUNT);
	failpoints[name].from = failpoint_passes(name) + skip;
	failpoints[name].times = times;
}

void failpoint_clear(void)
{
	for (unsigned i = 0; i < FAILPOINT_COUNT; i++) {
		atomic_store_explicit(&failpoints[i].passes, 0, memory_order_relaxed);
		failpoints[i].from = 0;
		failpoints[i].times = 0;
	}
}

unsigned failpoint_passes(enum failpoint_name name)
{
	must(name < FAILPOINT_COUNT);
	return atomic_load_explicit(&failpoints[name].passes, memory_order_relaxed);
}

const char *failpoint_text(enum failpoint_name name)
{
	must(name < FAILPOINT_COUNT);
	return failpoint_texts[name];
}

/* ---- by the environment ---- */

/* Index of the name of this length in a list, or n. */
static unsigned find_name(const char *const *names, unsigned n, const char *name, size_t length)
{
	unsigned i = 0;

	while (i < n && (strlen(names[i]) != length || memcmp(names[i], name, length) != 0))
		i++;
	return i;
}

static void take_protection(const char *name)
{
	unsigned i = find_name(protection_names, PROTECTION_COUNT, name, strlen(name));

	must(i < PROTECTION_COUNT);
	protection_off[i] = true;
}

static void take_failpoint(const char *text)
{
	size_t length = strcspn(text, ":");
	unsigned i = find_name(failpoint_names, FAILPOINT_COUNT, text, length);
	unsigned skip, times;

	must(i < FAILPOINT_COUNT);
	must(sscanf(text + length, ":%u:%u", &skip, &times) == 2);
	failpoint_arm((enum failpoint_name)i, skip, times);
}

static __attribute__((constructor)) void take_environment(void)
{
	const char *off = getenv("KVHOST_TEST_PROTECTION_OFF");
	const char *fail = getenv("KVHOST_TEST_FAILPOINT");

	if (off)
		take_protection(off);
	for (; fail; fail = strchr(fail, ',') ? strchr(fail, ',') + 1 : NULL)
		take_failpoint(fail);
	unsetenv("KVHOST_TEST_PROTECTION_OFF");
	unsetenv("KVHOST_TEST_FAILPOINT");
}

#endif
