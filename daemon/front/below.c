/* SPDX-License-Identifier: Apache-2.0 */
/* below: see below.h. Core thread; nothing here blocks. */
#include "daemon/front/below.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define PAUSE_LEAST_NS (10 * NS_PER_MS)
#define PAUSE_MOST_NS  (1 * NS_PER_S)

/* What the configuration and the model say, before KV-RAM itself is asked. */
static bool is_meant_to(const struct core_pool *p)
{
	return p->core->ram && p->config->enable_prefix_caching;
}

/* Of a retained state; 0: the pool is dense. */
static uint64_t image_bytes(const struct core_pool *p)
{
	return p->layout.n ? p->layout.state_stride + p->layout.ring_stride : 0;
}

static bool page_fits(const struct core_pool *p)
{
	return p->geometry.page_stride + image_bytes(p) <= p->core->ram->arena->bytes;
}

uint32_t below_images(const struct core_pool *p)
{
	uint64_t images;

	if (!image_bytes(p) || !is_meant_to(p) || !page_fits(p))
		return 0;
	images = p->core->ram->arena->bytes / image_bytes(p);
	return (uint32_t)(images < BELOW_IMAGES_MAX ? images : BELOW_IMAGES_MAX);
}

uint32_t below_pages(const struct core_pool *p, uint64_t most)
{
	const struct arena *a;
	uint64_t pages;

	if (!is_meant_to(p) || !page_fits(p))
		return 0;
	a = p->core->ram->arena;
	pages = a->bytes / p->geometry.page_stride;
	if (pages > a->most_objects)
		pages = a->most_objects;
	return (uint32_t)(pages < most ? pages : most);
}

/* Copies down fail, one after another: the next one is some time off, and the one after that
 * twice as long. */
static void pause_copies(struct core_pool *p)
{
	struct core *c = p->core;

	if (p->pause_ns == 0)
		log_write(c->log, LOG_LEVEL_WARNING,
			  "pool %s: copies to KV-RAM fail; live sequences make no room for others "
			  "until they succeed again",
			  p->config->name);
	p->pause_ns = p->pause_ns == 0 ? PAUSE_LEAST_NS : 2 * p->pause_ns;
	if (p->pause_ns > PAUSE_MOST_NS)
		p->pause_ns = PAUSE_MOST_NS;
	if (timers_arm(&c->timers, &p->resume, clock_now(&c->clock) + p->pause_ns))
		pool_resume(&p->pool); /* no memory for the time: at once */
}

static void resume(struct timer *t)
{
	struct core_pool *p = list_entry(t, struct core_pool, resume);

	pool_resume(&p->pool);
	core_pool_settle(p);
}

static void moved(void *context)
{
	struct core_pool *p = context;

	if (p->pool.failures == 0)
		p->pause_ns = 0;
	if (p->pool.pauses && !timer_is_armed(&p->resume))
		pause_copies(p);
	core_pool_settle(p);
}

bool below_is_degraded(const struct core_pool *p)
{
	return p->pause_ns > 0;
}

void below_remove(struct core_pool *p)
{
	timers_disarm(&p->core->timers, &p->resume);
	p->pause_ns = 0;
	ram_pool_deinit(&p->ram);
}

/* Why it is not meant to have any. */
static const char *no_need(const struct core_pool *p)
{
	if (!p->core->ram)
		return "KV-RAM is off";
	return "prefix caching is off";
}

static const char *refusal(int result)
{
	switch (result) {
	case -ENOSPC:
		return "the pools have pages and states of too many sizes already";
	case -E2BIG:
		return "its pages or states are too large";
	default:
		return "the daemon has no memory for that";
	}
}

void below_put(struct core_pool *p)
{
	struct core *c = p->core;
	int r = 0;

	p->ram_note[0] = 0;
	timer_init(&p->resume, resume);
	if (!is_meant_to(p)) {
		snprintf(p->ram_note, sizeof(p->ram_note), "%s", no_need(p));
		return;
	}
	if (!page_fits(p))
		snprintf(p->ram_note, sizeof(p->ram_note),
			 "%s %" PRIu64 " bytes, KV-RAM %" PRIu64
			 "; a larger kv_ram_bytes would change it",
			 p->layout.n ? "a state with one page has" : "a page has",
			 p->geometry.page_stride + image_bytes(p), c->ram->arena->bytes);
	else
		r = ram_pool_init(&p->ram, c->ram, &p->pool, c->device, &p->memory, image_bytes(p),
				  moved, p);
	if (r)
		snprintf(p->ram_note, sizeof(p->ram_note), "%s", refusal(r));
	if (p->ram_note[0])
		log_write(c->log, LOG_LEVEL_WARNING, "pool %s: KV-RAM does not serve it: %s",
			  p->config->name, p->ram_note);
}

bool below_is_missed(const struct core_pool *p)
{
	return is_meant_to(p) && p->ram_note[0];
}
