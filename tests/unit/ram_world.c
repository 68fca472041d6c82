/* SPDX-License-Identifier: Apache-2.0 */
/* ram_world: see ram_world.h. */
#include "tests/unit/ram_world.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/tier/ram_internal.h"
#include "daemon/tier/record.h"

static struct ram_world *the_world; /* whose device runs a job */

/* ---- the device ---- */

/* The moves before one that fails are made, and no others. */
static void run_with_faults(struct job *job)
{
	struct ram_world *w = the_world;
	struct device_job *j = (struct device_job *)(void *)job;
	uint32_t n = j->n;
	int r = 0;

	if (j->op != DEVICE_MOVE || !w->fault) {
		w->run(job);
		return;
	}
	for (j->n = 0; j->n < n; j->n++) {
		r = w->fault(w, j, &j->moves[j->n]);
		if (r)
			break;
	}
	w->run(job);
	assert_int_equal(job->result, 0);
	j->n_moved = j->n;
	j->n = n;
	job->result = r;
}

static void submit(struct device *d, struct device_job *job)
{
	struct ram_world *w = the_world;

	(void)d;
	w->real->submit(w->real, job);
	w->run = job->job.run;
	job->job.run = run_with_faults;
}

static void run_all(struct sim_executor *e)
{
	while (sim_executor_step(e, 0))
		e->executor.reap(&e->executor, 1);
}

static void made(struct job *job)
{
	assert_int_equal(job->result, 0);
}

static void make_or_free(struct ram_world *w, struct ram_world_pool *p, enum device_op op)
{
	struct device_job j = {.job.done = made, .op = op, .memory = &p->memory};

	w->real->submit(w->real, &j);
	run_all(&w->work);
}

/* ---- pools ---- */

static void moved(void *context)
{
	struct ram_world_pool *p = context;

	p->moved++;
}

static void changed(void *context)
{
	struct ram_world *w = context;

	w->changed++;
}

static void make_pool(struct ram_world *w, uint32_t i, const struct ram_world_wish *wish)
{
	struct ram_world_pool *p = &w->pools[i];
	uint64_t objects = w->arena->bytes / wish->page_bytes;
	struct pool_limits limits = {.pages = wish->pages,
				     .page_tokens = PAGE,
				     .max_sequence_tokens = 1u << 20,
				     .nodes = wish->pages + (uint32_t)objects + 64,
				     .prefix_budget = wish->pages,
				     .order = wish->order,
				     .name_spaces = RETAIN_NAMESPACES,
				     .ram_pages = (uint32_t)objects,
				     .interactive_ttl_ns = 300 * SECOND};
	uint8_t stamp[16] = {(uint8_t)(i + 1), 9, 9};
	const char *why = "";
	uint32_t layer;

	p->layer = (struct geometry_layer){
	    .kv_heads = (uint32_t)(wish->page_bytes / (2 * PAGE * sizeof(float) * 32)),
	    .head_dim = {32, 32},
	    .format = {KERNEL_FLOAT32, KERNEL_FLOAT32}};
	p->geometry = (struct geometry){.page_tokens = PAGE, .n_layers = 1, .layers = &p->layer};
	if (geometry_compute(&p->geometry, &why, &layer))
		fail_msg("%s", why);
	assert_int_equal(p->geometry.page_stride, wish->page_bytes);
	p->memory = (struct device_memory){.geometry = &p->geometry, .pages = wish->pages};
	p->memory.segment = SEGMENT_NONE;
	make_or_free(w, p, DEVICE_MAKE);
	p->made = true;
	assert_int_equal(pool_init(&p->pool, &limits, &world_maker, stamp), 0);
	p->pool.retain.now_ns = w->now_ns;
	assert_int_equal(ram_pool_init(&p->ram, w->ram, &p->pool, &w->device, &p->memory, moved, p),
			 0);
}

void ram_world_init(struct ram_world *w, const struct ram_world_limits *limits)
{
	struct arena_wish wish = {.bytes = limits->arena_bytes,
				  .chunk_bytes = limits->chunk_bytes ? limits->chunk_bytes
								     : limits->arena_bytes,
				  .most_objects = limits->most_objects,
				  .numa_node = ARENA_ANYWHERE,
				  .threads = 1};

	failpoint_clear();
	memset(w, 0, sizeof(*w));
	the_world = w;
	w->now_ns = 1000 * SECOND;
	w->random = 11;
	sim_executor_init(&w->work);
	sim_executor_init(&w->copies);
	sim_executor_init(&w->arrival);
	world_maker.kept_bits = 128;
	memset(world_maker.secret, 0x3c, sizeof(world_maker.secret));
	assert_int_equal(device_cpu_new(&w->copies.executor, &w->work.executor, &w->real), 0);
	w->device = (struct device){.submit = submit, .name = "test"};
	if (!wish.most_objects)
		wish.most_objects = (uint32_t)(limits->arena_bytes / (4 * KIB));
	assert_int_equal(arena_new(&wish, &w->arrival.executor, changed, w, &w->arena), 0);
	if (!limits->arrives_later)
		run_all(&w->arrival);
	assert_int_equal(ram_new(w->arena, 77, &w->ram), 0);
	w->ram->now_ns = w->now_ns;
	for (uint16_t ns = 0; ns < 2; ns++) {
		uint8_t digest[16] = {0xd0, (uint8_t)(ns + 1)};

		ram_set_share(w->ram, ns, limits->quota[ns], limits->guaranteed[ns], digest);
	}
	w->n_pools = limits->n_pools;
	for (uint32_t i = 0; i < w->n_pools; i++)
		make_pool(w, i, &limits->pool[i]);
}

void ram_world_deinit(struct ram_world *w)
{
	uint32_t all = ALL;

	memset(protection_off, 0, sizeof(protection_off));
	w->fault = NULL;
	if (w->ram)
		ram_world_settle(w);
	for (uint32_t i = 0; i < w->n_pools; i++) {
		struct ram_world_pool *p = &w->pools[i];

		while (!list_is_empty(&p->pool.members)) {
			struct seq *s =
			    list_entry(list_first(&p->pool.members), struct seq, in_pool);

			step_end(s, false);
			seq_close_turn(&s, &all);
		}
		pool_drop_ram(&p->pool, RETAIN_NAMESPACES, &all);
	}
	if (w->ram)
		ram_world_settle(w);
	for (uint32_t i = 0; i < w->n_pools; i++) {
		struct ram_world_pool *p = &w->pools[i];

		all = ALL;
		pool_drop_ram(&p->pool, RETAIN_NAMESPACES, &all);
		ram_pool_deinit(&p->ram);
		pool_deinit(&p->pool);
		if (p->made)
			make_or_free(w, p, DEVICE_FREE);
	}
	ram_free(&w->ram);
	while (w->arena && !arena_stop(w->arena))
		run_all(&w->arrival);
	arena_free(&w->arena);
	w->real->free(w->real);
}

/* ---- what must hold ---- */

void ram_world_fill(void *page, uint64_t bytes, uint64_t key)
{
	uint64_t *words = page;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = key + i;
}

static bool is_filled(const void *page, uint64_t bytes, uint64_t key)
{
	const uint64_t *words = page;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++) {
		if (words[i] != key + i)
			return false;
	}
	return true;
}

static char *page_at(const struct ram_world_pool *p, uint32_t page)
{
	return (char *)p->memory.segment.memory + page * p->geometry.page_stride;
}

static char *place_at(const struct ram_world *w, uint32_t object)
{
	return w->arena->memory + frames_piece(w->arena->frames, object, 0).offset;
}

static const char *wrong_bytes(const struct ram_world *w, const struct ram_world_pool *p)
{
	uint64_t bytes = p->geometry.page_stride;

	for (uint32_t i = 0; i < p->pool.prefix.fresh; i++) {
		const struct node *n = &p->pool.prefix.nodes[i];

		if (n->kind != NODE_TOKENS)
			continue;
		if (node_is_on_device(n) &&
		    !is_filled(page_at(p, n->copies[TIER_DEVICE]), bytes, n->key.low))
			return "in a page are not the bytes of its node";
		if (node_is_in_ram(n) &&
		    !is_filled(place_at(w, n->copies[TIER_RAM]), bytes, n->key.low))
			return "in a place of KV-RAM are not the bytes of its page";
	}
	return NULL;
}

struct scan {
	const struct ram_world *w;
	const char *wrong;
};

static const char *wrong_record(const struct ram_world *w, uint32_t object, enum record_state state,
				const struct record *r, const struct record_parts *parts)
{
	const struct ram_world_pool *p = (const void *)w->ram->objects[object].pool;
	uint32_t node = w->ram->objects[object].node;
	struct frames_piece piece = frames_piece(w->arena->frames, object, 0);
	const struct prefix *x = &p->pool.prefix;
	const struct node *n = &x->nodes[node];
	const struct prefix_images *images = n->images ? &x->images[n->images - 1] : NULL;

	if (state != (node_is_in_ram(n) ? RECORD_VALID : RECORD_FILLING))
		return "a record does not say whether its bytes are there";
	if (r->kind != RECORD_PAGE || r->boot_nonce != 77 || r->id != n->id ||
	    r->parent_nonce != 77 || r->parent_id != x->nodes[n->parent].id ||
	    r->key[0] != n->key.low || r->key[1] != n->key.high || r->epoch != x->epoch ||
	    r->position != n->position)
		return "a record names another page";
	if (memcmp(r->stamp, x->stamp, 16) ||
	    memcmp(r->name_space, w->ram->shares[n->name_space].digest, 16))
		return "a record is of another pool or namespace";
	if (r->n_tokens != n->length ||
	    memcmp(parts->tokens, prefix_tokens(x, node), n->length * sizeof(uint32_t)))
		return "a record has other tokens";
	if (r->n_spans != (images ? images->n : 0) ||
	    (images && memcmp(parts->spans, images->image, images->n * sizeof(*images->image))))
		return "a record has other images";
	if (r->n_extents != 1 || r->payload_bytes != p->geometry.page_stride ||
	    parts->extents[0].offset != piece.offset || parts->extents[0].bytes != piece.bytes)
		return "a record says another place";
	return NULL;
}

static void visit(void *context, uint64_t index, enum record_state state, int wrong,
		  const struct record *r, const struct record_parts *parts)
{
	struct scan *s = context;

	if (s->wrong)
		return;
	if (wrong)
		s->wrong = "a record cannot be read";
	else if (!s->w->ram->objects[index].pool)
		s->wrong = "a record is left where nothing lies";
	else
		s->wrong = wrong_record(s->w, (uint32_t)index, state, r, parts);
}

static const char *wrong_records(struct ram_world *w)
{
	struct scan s = {.w = w};
	uint64_t n = record_scan(w->arena->headers, w->arena->most_objects, visit, &s);

	if (!s.wrong && n != frames_sums(w->arena->frames).objects)
		return "something lies in KV-RAM without a record";
	return s.wrong;
}

const char *ram_world_wrong(struct ram_world *w, bool bytes)
{
	const char *wrong = ram_check(w->ram);

	if (!wrong && bytes)
		wrong = wrong_records(w);
	for (uint32_t i = 0; i < w->n_pools && !wrong; i++) {
		/* That of the learned order takes long. */
		wrong = pool_check(&w->pools[i].pool, bytes || !w->pools[i].pool.retain.learned);
		if (!wrong && bytes)
			wrong = wrong_bytes(w, &w->pools[i]);
	}
	return wrong;
}

void ram_world_check(struct ram_world *w)
{
	const char *wrong = ram_world_wrong(w, true);

	if (wrong)
		fail_msg("%s", wrong);
}

/* ---- copies ---- */

void ram_world_kick(struct ram_world *w)
{
	ram_kick(w->ram);
}

bool ram_world_copy(struct ram_world *w)
{
	if (!sim_executor_step(&w->copies, 0))
		return false;
	assert_int_equal(w->copies.executor.reap(&w->copies.executor, 1), 1);
	return true;
}

void ram_world_settle(struct ram_world *w)
{
	do
		ram_world_kick(w);
	while (ram_world_copy(w));
}

void ram_world_wait(struct ram_world *w, uint64_t ns)
{
	w->now_ns += ns;
	w->ram->now_ns = w->now_ns;
	for (uint32_t i = 0; i < w->n_pools; i++)
		w->pools[i].pool.retain.now_ns = w->now_ns;
}

/* ---- sequences ---- */

bool ram_world_step(struct ram_world *w, uint32_t pool, struct seq *s, uint32_t target)
{
	struct ram_world_pool *p = &w->pools[pool];
	uint32_t before = s->published, n, node;

	assert_int_equal(step_wants(s, target, 0, &n), 0);
	if (step_begin(s, target, 0, n))
		return false;
	world_commit(s, target - s->step.start, NULL);
	node = s->node;
	for (uint32_t i = s->published; i > before; i--) {
		const struct node *at = &p->pool.prefix.nodes[node];

		if (at->copies[TIER_DEVICE] == seq_page(s, i - 1))
			ram_world_fill(page_at(p, at->copies[TIER_DEVICE]), p->geometry.page_stride,
				       at->key.low);
		node = at->parent;
	}
	return true;
}

static struct seq *open_text(struct ram_world *w, struct ram_world_pool *p, uint16_t name_space,
			     const uint32_t *tokens, uint32_t n)
{
	struct match_wish wish = world_wish(tokens, n);
	struct opening *o;
	struct seq *s = NULL;

	wish.name_space = name_space;
	o = opening_begin(&p->pool, &wish, n);
	assert_non_null(o);
	while (opening_turn(&o, ALL, &s))
		ram_world_settle(w);
	return s;
}

void ram_world_retain(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
		      uint32_t n, uint32_t *nodes)
{
	struct ram_world_pool *p = &w->pools[pool];
	uint32_t *tokens = malloc((n * PAGE + 1) * sizeof(*tokens));
	struct seq *s;
	uint32_t node;

	world_tokens(tokens, n * PAGE + 1, 0, which);
	s = open_text(w, p, name_space, tokens, n * PAGE + 1);
	for (uint32_t i = 0; s->committed < n * PAGE; i++) {
		assert_true(i < 100);
		if (ram_world_step(w, pool, s, n * PAGE))
			break;
		ram_world_settle(w);
		world_clean(&p->pool);
	}
	node = s->node;
	for (uint32_t i = n; nodes && i-- > 0; node = p->pool.prefix.nodes[node].parent)
		nodes[i] = node;
	world_close(&s);
	free(tokens);
}

uint32_t ram_world_reuse(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			 uint32_t n)
{
	uint32_t *tokens = malloc((n * PAGE + 1) * sizeof(*tokens));
	struct seq *s;
	uint32_t had;

	world_tokens(tokens, n * PAGE + 1, 0, which);
	s = open_text(w, &w->pools[pool], name_space, tokens, n * PAGE + 1);
	had = s->committed / PAGE;
	world_close(&s);
	free(tokens);
	return had;
}

void ram_world_send_down(struct ram_world *w, uint32_t pool, uint32_t n)
{
	struct pool *p = &w->pools[pool].pool;

	pool_make_room(p, pages_free(&p->pages) + (uint32_t)p->leaving + n);
}

void ram_world_put_down(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			uint32_t n, uint32_t *nodes)
{
	struct ram_world_pool *p = &w->pools[pool];

	ram_world_retain(w, pool, name_space, which, n, nodes);
	for (uint32_t i = 0; i < 100 && p->pool.indexed; i++) {
		ram_world_send_down(w, pool, n);
		ram_world_settle(w);
	}
	assert_int_equal(p->pool.indexed, 0);
	world_clean(&p->pool);
}

uint32_t ram_world_below(struct ram_world *w, uint32_t pool, uint16_t name_space, uint32_t which,
			 uint32_t n)
{
	struct pool *p = &w->pools[pool].pool;
	uint32_t *tokens = malloc((n * PAGE + 1) * sizeof(*tokens));
	uint32_t *path = malloc(n * sizeof(*path));
	struct match_wish wish = world_wish(tokens, n * PAGE + 1);
	uint32_t below = 0, all = ALL;
	struct match m;

	world_tokens(tokens, n * PAGE + 1, 0, which);
	wish.name_space = name_space;
	match_begin(&m, p, &wish, path, 0);
	assert_int_equal(match_turn(&m, &all), 0);
	for (uint32_t i = 0; i < m.walk.position; i++)
		below += node_is_in_ram(&p->prefix.nodes[path[i]]);
	free(tokens);
	free(path);
	return below;
}
