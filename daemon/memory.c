/* SPDX-License-Identifier: Apache-2.0 */
/* memory: see memory.h. Core thread. */
#include "daemon/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/tier/arena_memory.h"
#include "daemon/tier/nodes.h"
#include "daemon/tier/ram.h"

/* ---- how much ---- */

static struct arena_wish ram_wish(const struct config *c, int numa_node)
{
	struct ram_parts parts = ram_divide(c->kv_ram_bytes, c->kv_ram_page_bytes);

	return (struct arena_wish){.bytes = parts.arena_bytes,
				   .most_objects = parts.objects,
				   .chunk_bytes = c->kv_ram_chunk_bytes / FRAME_BYTES * FRAME_BYTES,
				   .require_huge = c->core.require_hugepages,
				   .lock = c->kv_ram_lock,
				   .numa_node = numa_node,
				   .page_bytes = c->kv_ram_page_bytes,
				   .known_bytes = RAM_KNOWN_BYTES,
				   .threads = arena_memory_threads()};
}

static struct staging_wish staging_wish(const struct config *c, int numa_node)
{
	return (struct staging_wish){.bytes = c->kv_staging_bytes,
				     .require_huge = c->core.require_hugepages,
				     .lock = c->kv_ram_lock,
				     .numa_node = numa_node,
				     .threads = arena_memory_threads()};
}

static bool is_set(const struct config *c, int option)
{
	return c->origin[option].source != CONFIG_FROM_DEFAULT;
}

/* ---- arriving ---- */

static void on_ram(void *context)
{
	struct memory *m = context;
	const struct arena *a = m->arena;

	m->ram_arrived(m->context);
	if (a->state == ARENA_ARRIVING)
		return;
	log_write(m->log, a->state == ARENA_WHOLE ? LOG_LEVEL_NOTICE : LOG_LEVEL_WARNING,
		  "KV-RAM: %" PRIu64 " of %" PRIu64 " bytes; %s", a->arrived_bytes, a->bytes,
		  a->note);
}

static void on_staging(void *context)
{
	struct memory *m = context;
	const struct staging *s = m->staging;

	if (s->state == ARENA_WHOLE)
		log_write(m->log, LOG_LEVEL_NOTICE, "staging: %" PRIu64 " bytes; %s", s->bytes,
			  s->note);
	else
		log_write(m->log, LOG_LEVEL_WARNING, "staging is missing: %s", s->note);
}

/* ---- start ---- */

struct part { /* of what is taken */
	const char *name, *key;
	bool is_set;
	uint64_t bytes; /* configured */
	int result;     /* 0, or why it cannot be had */
	char why[ARENA_NOTE_BYTES];
	char *note;
};

static void note_off(const struct part *p)
{
	if (p->bytes == 0)
		snprintf(p->note, MEMORY_NOTE_BYTES, "off: %s is 0", p->key);
	else
		snprintf(p->note, MEMORY_NOTE_BYTES, "off: %s", p->why);
}

/* Before anything is taken: both, or which of the two is left out. */
static void check(struct part *staging, struct part *ram, const struct staging_wish *windows,
		  struct arena_wish *pages)
{
	char why[ARENA_NOTE_BYTES];

	if (staging->bytes)
		staging->result = staging_check(windows, staging->why);
	if (!ram->bytes)
		return;
	pages->beside_bytes = staging->bytes && !staging->result ? staging_bytes(windows) : 0;
	ram->result = arena_check(pages, ram->why);
	if (!ram->result || !pages->beside_bytes || !ram->is_set || staging->is_set)
		return;
	pages->beside_bytes = 0;
	if (arena_check(pages, why))
		return;
	staging->result = ram->result;
	memcpy(staging->why, ram->why, sizeof(staging->why));
	ram->result = 0;
}

/* What is set must be there. */
static int refuse(const struct part *p)
{
	if (p->result && p->is_set)
		fprintf(stderr, "kvhostd: %s: %s\n", p->key, p->why);
	return p->is_set ? p->result : 0;
}

static void take_staging(struct memory *m, struct part *p, const struct staging_wish *wish,
			 struct executor *work)
{
	if (!p->bytes || p->result)
		return;
	p->result = staging_new(wish, work, on_staging, m, &m->staging);
	if (p->result)
		staging_explain(wish, p->result, p->why);
}

static void take_ram(struct memory *m, struct part *p, const struct arena_wish *wish,
		     struct executor *work)
{
	if (!p->bytes || p->result)
		return;
	p->result = arena_new(wish, work, on_ram, m, &m->arena);
	if (p->result)
		arena_explain(wish, p->result, p->why);
}

static void tell(const struct part *p, struct log *log)
{
	note_off(p);
	log_write(log, p->result ? LOG_LEVEL_WARNING : LOG_LEVEL_NOTICE, "%s is %s", p->name,
		  p->note);
}

int memory_start(struct memory *m, const struct config *config, int numa_node,
		 struct executor *work, struct log *log, void (*ram_arrived)(void *context),
		 void *context)
{
	struct part staging = {.name = "staging",
			       .key = "kv_staging_bytes",
			       .is_set = is_set(config, OPTION_top_kv_staging_bytes),
			       .bytes = config->kv_staging_bytes,
			       .note = m->staging_note};
	struct part ram = {.name = "KV-RAM",
			   .key = "kv_ram_bytes",
			   .is_set = is_set(config, OPTION_top_kv_ram_bytes),
			   .bytes = config->kv_ram_bytes,
			   .note = m->ram_note};
	struct staging_wish windows = staging_wish(config, numa_node);
	struct arena_wish pages = ram_wish(config, numa_node);
	int first, r;

	m->log = log;
	m->ram_arrived = ram_arrived;
	m->context = context;
	if (numa_node >= 0 && !nodes_have(numa_node, &first)) {
		fprintf(stderr,
			"kvhostd: kv_ram_numa_node: this process has no NUMA node %d, the first "
			"that it has is %d\n",
			numa_node, first);
		return -EINVAL;
	}
	check(&staging, &ram, &windows, &pages);
	r = refuse(&staging);
	if (!r)
		r = refuse(&ram);
	if (r)
		return r;
	take_staging(m, &staging, &windows, work);
	r = refuse(&staging);
	if (r)
		return r;
	take_ram(m, &ram, &pages, work);
	r = refuse(&ram);
	if (!r && !m->staging)
		tell(&staging, log);
	if (!r && !m->arena)
		tell(&ram, log);
	return r;
}

/* ---- stop ---- */

bool memory_stop(struct memory *m)
{
	bool staging = !m->staging || staging_stop(m->staging);
	bool ram = !m->arena || arena_stop(m->arena);

	return staging && ram;
}

void memory_free(struct memory *m)
{
	staging_free(&m->staging);
	arena_free(&m->arena);
}
