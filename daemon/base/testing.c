/* SPDX-License-Identifier: Apache-2.0 */

/*
 * testing: the state of failpoints and protection switches, in the test library alone. A point may
 * be passed on any thread; arming and switching happen while nothing else runs. Nothing blocks.
 */

#include "daemon/base/testing.h"

#ifdef KVHOST_TESTING

#include <stdatomic.h>

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

#endif
