/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_PREFIX_TEXTS_H
#define KVHOST_TESTS_PREFIX_TEXTS_H

/* prefix_texts: pages by number, and chains of them. One thread. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/state/prefix.h"

#define PAGE 16u

static inline void check(const struct prefix *p)
{
	uint32_t at = 0;
	const char *wrong = prefix_check(p, &at, UINT32_MAX);

	if (wrong)
		fail_msg("%s", wrong);
}

static inline uint32_t *tokens_of(uint32_t text)
{
	static uint32_t t[PAGE];

	for (uint32_t i = 0; i < PAGE; i++)
		t[i] = text * 31 + i;
	return t;
}

/* Publish and give it a copy. */
static inline uint32_t add(struct prefix *p, uint32_t parent, uint32_t text)
{
	uint32_t node;

	assert_int_equal(prefix_publish(p, parent, tokens_of(text), PAGE, NULL, 0, &node),
			 PREFIX_NEW);
	prefix_put_copy(p, node, TIER_DEVICE, node + 1000);
	return node;
}

#endif
