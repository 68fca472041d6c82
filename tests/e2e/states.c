/* SPDX-License-Identifier: Apache-2.0 */
/* states: see states.h. One thread; blocks as the library does. */
#include "tests/e2e/states.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void states_start(struct states *s, const char *json, uint64_t state_bytes, int map)
{
	daemon_start(&s->d, json);
	hybrid_start(&s->e, s->d.socket, "hybrid", state_bytes, map);
}

void states_stop(struct states *s)
{
	engine_stop(&s->e);
	daemon_remove(&s->d);
	*s = (struct states){0};
}

void states_make(struct states_prompt *p, uint32_t number, uint32_t n, uint32_t system,
		 uint32_t opener)
{
	assert_true(n <= STATES_MOST);
	engine_tokens(p->tokens, n, system, number);
	p->prompt = (struct kvhost_prompt){.tokens = p->tokens,
					   .n_tokens = n,
					   .system_end_tokens = system,
					   .opener_tokens = opener};
}

void states_usual(struct states_prompt *p, uint32_t number)
{
	states_make(p, number, STATES_USUAL + 1, 0, STATES_USUAL);
}

struct kvhost_open_result states_serve(struct states *s, const struct states_prompt *p)
{
	return hybrid_serve(&s->e, &p->prompt);
}

struct kvhost_open_result states_serve_usual(struct states *s, uint32_t number)
{
	struct states_prompt p;

	states_usual(&p, number);
	return states_serve(s, &p);
}

struct kvhost_open_result states_look_up(struct states *s, const struct states_prompt *p)
{
	struct kvhost_open_result found = {0};

	assert_int_equal(kvhost_lookup(s->e.pool, &p->prompt, &found), 0);
	return found;
}

uint64_t states_counter(const struct states *s, const char *name)
{
	return daemon_pool_counter(&s->d, "hybrid", name);
}

void states_expect(const struct states *s, const char *name, uint64_t value)
{
	uint64_t found = daemon_await(&s->d, "hybrid", name, value, LONG_MS);

	if (found != value)
		fail_msg("%s is %llu, not %llu", name, (unsigned long long)found,
			 (unsigned long long)value);
}

uint64_t states_tiers(struct states *s, const char *after)
{
	char *answer = NULL, *at;
	uint64_t value;

	assert_int_equal(kvhost_ask(s->e.host, "tiers", "", &answer), 0);
	at = strstr(answer, after);
	assert_non_null(at);
	value = strtoull(at + strlen(after), NULL, 10);
	free(answer);
	return value;
}

/* As the daemon has it now: the stats file is a millisecond old. */
static bool is_at_rest(void *context)
{
	struct states *s = context;

	return states_tiers(s, "\"leaving_pages\":") == 0 &&
	       states_tiers(s, "\"arriving_pages\":") == 0 &&
	       states_tiers(s, "\"leaving_images\":") == 0;
}

void states_rest(struct states *s)
{
	assert_true(await(is_at_rest, s, LONG_MS));
	states_expect(s, "pool_sequences", 0);
	states_expect(s, "pool_lanes_used", 0);
	states_expect(s, "pool_pages_live", 0);
	assert_true(engine_check(&s->e));
}

void states_found(const struct kvhost_open_result *found, uint32_t cached_tokens, uint32_t kind,
		  uint32_t tier, uint32_t miss)
{
	if (found->cached_tokens != cached_tokens || found->kind != kind || found->tier != tier ||
	    found->miss != miss)
		fail_msg("found %u tokens of kind %u in tier %u, miss %u; not %u, %u, %u, %u",
			 found->cached_tokens, found->kind, found->tier, found->miss, cached_tokens,
			 kind, tier, miss);
}
