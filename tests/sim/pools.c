/* SPDX-License-Identifier: Apache-2.0 */
/* pools: see pools.h. One thread; nothing blocks. */
#include "tests/sim/pools.h"

#include <errno.h>

#include "daemon/front/drop.h"
#include "tests/sim/sim.h"

#define ALLOW(status)  (1u << -(status))
#define SLOT_BYTES     4096ull
#define LANE_BYTES     (2 * SIM_STATE_MOST + SLOT_BYTES)
#define POOL_BYTES     (SIM_LARGE_PAGES * SIM_PAGE_MOST + SIM_LANES * LANE_BYTES)
#define RETAINED_BYTES (SIM_RETAINED * (SIM_STATE_MOST + SLOT_BYTES))

static _Alignas(4096) char pool_bytes[POOL_BYTES];
static _Alignas(4096) char retained_bytes[RETAINED_BYTES];

/* ---- memory ---- */

static struct segment segment_of(void *memory, uint64_t bytes)
{
	return (struct segment){.memory = memory, .bytes = bytes, .fd = -1, .page_bytes = 4096};
}

static void make_memory(struct job *job)
{
	struct device_memory *m = ((struct device_job *)(void *)job)->memory;
	uint64_t bytes = m->pages * m->geometry->page_stride + m->slot_bytes;

	job->result = -ENOMEM;
	if (bytes > sizeof(pool_bytes) || m->retained_bytes > sizeof(retained_bytes))
		return;
	job->result = 0;
	m->segment = segment_of(pool_bytes, bytes);
	memset(pool_bytes, 0, bytes);
	if (m->retained_bytes == 0)
		return;
	m->retained = segment_of(retained_bytes, m->retained_bytes);
	memset(retained_bytes, 0, m->retained_bytes);
}

/* Whoever writes to it still does so in memory that nobody else has. */
static void forget_memory(struct sim *w)
{
	w->done++;
	w->drops++;
	images_forget(w);
	drops_forget(w, NULL);
	for (uint32_t i = 0; i < w->n_clients; i++) {
		for (uint32_t k = 0; k < SIM_SEQUENCES; k++)
			w->clients[i].views[k].used = false;
	}
}

static void free_memory(struct job *job)
{
	struct device_memory *m = ((struct device_job *)(void *)job)->memory;

	job->result = 0;
	m->segment = m->retained = SEGMENT_NONE;
}

bool pools_submit(struct sim *w, struct device_job *job)
{
	if (job->op != DEVICE_MAKE && job->op != DEVICE_FREE)
		return false;
	if (job->op == DEVICE_FREE)
		forget_memory(w);
	job->job.run = job->op == DEVICE_MAKE ? make_memory : free_memory;
	w->work.executor.submit(&w->work.executor, &job->job);
	return true;
}

void pools_leave_memory(struct sim *w)
{
	sim_core_pool(w)->memory.segment = SEGMENT_NONE;
	sim_core_pool(w)->memory.retained = SEGMENT_NONE;
}

/* ---- in and out ---- */

void ask_attach(struct sim_client *c)
{
	uint32_t n_sections = c->hybrid ? SIM_SECTIONS : 0;
	uint32_t n_layers = c->sim->page_bytes > SPILL_PAGE_BYTES ? 3 : 2;
	struct sim_op *o = op_new(c, WIRE_OP_POOL_ATTACH, NULL);
	struct payload_layer *layers;
	struct payload_pool *p = op_in(o, (uint32_t)(sizeof(*p) + n_layers * sizeof(*layers) +
						     n_sections * sizeof(struct payload_section)));

	p->version = PAYLOAD_VERSION;
	p->n_layers = n_layers;
	p->n_sections = n_sections;
	p->page_tokens = SIM_PAGE_TOKENS;
	p->name[0] = 'p';
	p->tensor_size = p->pipeline_size = 1;
	layers = (struct payload_layer *)(void *)(p + 1);
	layers[0] = (struct payload_layer){.kv_heads = 1, .k_head_dim = 2, .v_head_dim = 2};
	layers[1] = (struct payload_layer){.kv_heads = 1, .k_head_dim = 2, .v_head_dim = 0};
	if (n_layers > 2) /* of which nobody writes a row */
		layers[2] =
		    (struct payload_layer){.kv_heads = 64, .k_head_dim = 32, .v_head_dim = 0};
	if (n_sections)
		images_describe(c->sim, layers + n_layers);
	o->allowed |= ALLOW(WIRE_EMISMATCH);
	o->e.deadline_us = 1u << 31;
	op_out(o, sizeof(struct payload_pool_info) + 3 * sizeof(struct payload_block) +
		      SIM_SECTIONS * sizeof(struct payload_section_place));
	c->attaching = true;
	op_send(o);
}

void took_attach(struct sim_op *o, const struct completion *reply)
{
	const struct payload_pool_info *info = op_answer(o);
	struct sim_client *c = o->client;

	c->attaching = false;
	c->attached = true;
	c->pool = (struct slot_handle){reply->index, reply->generation};
	sim_check(c->sim, sim_pool(c->sim) && sim_pool(c->sim)->hybrid == c->hybrid,
		  "a pool is of another kind than described");
	sim_check(c->sim,
		  (info->state_stride != 0) == c->hybrid &&
		      (info->n_sections == (c->hybrid ? SIM_SECTIONS : 0)) &&
		      (!c->hybrid || info->lanes == c->sim->config.pools[0].lanes),
		  "what the pool is does not fit what was asked for");
}

void attach_failed(struct sim_op *o, int status)
{
	struct sim_client *c = o->client;

	c->attaching = false;
	if (status == WIRE_EMISMATCH)
		c->hybrid = !c->hybrid; /* somebody was first */
}

static bool may_detach(const struct sim_client *c)
{
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		if (c->views[i].used)
			return false;
	}
	for (uint32_t i = 0; i < SIM_OPS; i++) {
		if (c->ops[i].used && c->ops[i].e.opcode == WIRE_OP_BATCH)
			return false;
	}
	return true;
}

void ask_detach(struct sim_client *c)
{
	struct sim_op *o;

	if (!may_detach(c))
		return;
	o = op_new(c, WIRE_OP_POOL_DETACH, NULL);
	o->e.index = c->pool.index;
	o->e.generation = c->pool.generation;
	c->attached = false;
	op_send(o);
}

struct sim_op *ask_admin(struct sim_client *c, uint32_t question, const char *argument,
			 uint32_t allowed)
{
	struct sim_op *o = op_new(c, WIRE_OP_ADMIN, NULL);
	struct payload_admin *p = op_in(o, sizeof(*p));

	p->question = question;
	memcpy(p->argument, argument, strlen(argument));
	o->allowed = allowed;
	op_out(o, 512);
	op_send(o);
	return o;
}

void ask_pool(struct sim_client *c)
{
	struct sim *w = c->sim;
	uint32_t kind = below(w, 100);

	if (c->attaching)
		return;
	if (kind < 30)
		ask_admin(c, PAYLOAD_ADMIN_POOL_DROP, "p", 1 | ALLOW(WIRE_EBUSY));
	else if (kind < 35 && !c->in_flight)
		c->hybrid = !c->hybrid;
	else
		ask_attach(c);
}

void pools_drop(struct sim *w)
{
	struct core_pool *p = sim_core_pool(w);

	if ((p->state != CORE_POOL_READY && p->state != CORE_POOL_FAILED) || core_pool_users(p))
		return;
	w->core_sleeps = false;
	core_pool_drop(p);
}

/* ---- quotas and guarantees, from what the pages are ---- */

static void count_held(const struct pool *p, uint64_t held[2])
{
	for (uint32_t i = 0; i < p->pages.fresh; i++) {
		const struct page *page = &p->pages.page[i];

		if (page->state == PAGE_INDEXED)
			held[p->prefix.nodes[page->next].name_space]++;
		if (page->state == PAGE_PRIVATE)
			held[page->name_space]++;
	}
}

/* The partial page that forks share is in nobody's table while all of them write to copies. */
static bool is_replaced_by_all(const struct pool *p, uint32_t page)
{
	uint32_t n = 0;

	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		n += s->step.replaced == page;
	}
	return n > 1 && n == p->pages.page[page].references;
}

/* After a truncation inside a page a step holds the published page that it goes on in a copy of. */
static void count_tails(const struct pool *p, uint64_t tails[2])
{
	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		tails[s->name_space] +=
		    !p->hybrid && s->tail_node != NODE_NONE && s->step.replaced != PAGE_NONE;
	}
	for (uint32_t i = 0; i < p->pages.fresh; i++) {
		const struct page *page = &p->pages.page[i];

		if (page->state == PAGE_PRIVATE && is_replaced_by_all(p, i))
			tails[page->name_space]++;
		/* It was to go, and stayed as its copy failed. */
		if (page->state == PAGE_INDEXED && p->prefix.nodes[page->next].moves & NODE_TRIED)
			tails[p->prefix.nodes[page->next].name_space]++;
	}
}

void pools_check_quotas(struct sim *w)
{
	const struct pool *p = sim_pool(w);
	uint64_t held[2] = {0}, tails[2] = {0};

	count_held(p, held);
	count_tails(p, tails);
	for (uint16_t ns = 0; ns < w->config.n_namespaces; ns++) {
		uint64_t quota = w->config.namespaces[ns].max_pages;

		sim_check(w, held[ns] == pool_held(p, ns),
			  "namespace %u holds %llu pages, counted are %llu", ns,
			  (unsigned long long)held[ns], (unsigned long long)pool_held(p, ns));
		/* What a commit gives up may be on its way to KV-RAM. */
		sim_check(w,
			  quota == CONFIG_NULL ||
			      held[ns] <= quota + tails[ns] + p->shares[ns].leaving,
			  "namespace %u holds %llu pages, its quota is %llu", ns,
			  (unsigned long long)held[ns], (unsigned long long)quota);
	}
}

bool pools_may_leave(const struct image *it, bool slotted)
{
	return it->state == IMAGE_VALID && it->on_device && !it->claims && !it->spilling &&
	       !it->moving && (!slotted || it->slot != SLOT_NONE);
}

double pools_index(const struct pool *p, const struct image *it)
{
	const struct reuse *learned = pool_reuse(p);
	uint32_t bucket = reuse_bucket(p->retain.tick - it->habit.tick);

	return learned ? learned->index[reuse_cell(it->habit.class, bucket)] : 0;
}

/* Does it have a page, or a state, that may go from the device? */
static bool has_leaving(const struct pool *p, uint16_t name_space, bool slotted)
{
	for (uint32_t i = 0; i < p->images.n_images; i++) {
		if (p->images.image[i].name_space == name_space &&
		    pools_may_leave(&p->images.image[i], slotted))
			return true;
	}
	for (uint32_t i = 0; !p->hybrid && i < p->prefix.fresh; i++) {
		const struct node *n = &p->prefix.nodes[i];

		if (n->kind == NODE_TOKENS && n->name_space == name_space &&
		    n->copies[TIER_DEVICE] != COPY_NONE && n->users == 0 &&
		    !(n->moves & (NODE_LEAVING | NODE_FILLING)) && n->children_in[TIER_DEVICE] == 0)
			return true;
	}
	return false;
}

uint64_t pools_weakest(const struct pool *p, bool slotted)
{
	uint64_t held[2] = {0}, by_claim[3] = {0};

	count_held(p, held);
	for (uint16_t ns = 0; ns < 2; ns++) {
		const struct pool_share *s = &p->shares[ns];
		uint32_t claim;

		held[ns] -= s->leaving;
		claim = held[ns] <= s->guaranteed_pages;

		if (s->quota_pages && held[ns] > s->quota_pages)
			claim = 0;
		else
			claim++;
		if (has_leaving(p, ns, slotted))
			by_claim[claim] |= 1ull << ns;
	}
	return by_claim[0] ? by_claim[0] : by_claim[1] ? by_claim[1] : by_claim[2];
}

/* A step of its own may have to make room for itself within its quota. */
bool pools_is_forced(const struct pool *p, uint16_t name_space)
{
	const struct pool_share *s = &p->shares[name_space];

	return s->quota_pages &&
	       pool_held(p, name_space) - s->leaving + SIM_TABLE + 1 > s->quota_pages;
}
