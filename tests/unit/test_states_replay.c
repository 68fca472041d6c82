/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the orders of a hybrid pool find when requests come one after another: of each prompt the
 * longest state before its last block, in KV-RAM or on a device that has hardly more room than a
 * prompt wants; each leaves a state there. A block is a page, an image takes the room of seven.
 * One thread.
 *
 * usage: test_states_replay           the tests: requests that are made up
 *        test_states_replay TRACE     what is found of a trace (tools/bench_trace.h), in JSON
 */

#include "tests/unit/seeds.h"
#include "tests/unit/states_world.h"
#include "tools/bench_trace.h"

#define DEVICE 300u /* pages; the longest prompt must fit */
#define IMAGE  7u   /* blocks */
#define BLOCKS 250u /* of a prompt, at most */

struct found {
	uint32_t opens, blocks;
};

static void serve(struct states *w, const uint32_t *ids, uint32_t n, struct found *found)
{
	static uint32_t tokens[BLOCKS * PAGE];
	struct match_wish wish;
	struct seq *s;
	uint32_t image;

	assert_true(n <= BLOCKS);
	for (uint32_t i = 0; i < n * PAGE; i++)
		tokens[i] = ids[i / PAGE] * PAGE + i % PAGE;
	wish = world_wish(tokens, n * PAGE);
	/* The next turn has the last block in another form. */
	wish.max_cached_tokens = (n - 1) * PAGE;
	states_make_room(w, n);
	s = states_open_wish(w, &wish, n * PAGE);
	found->opens += s->committed > 0;
	found->blocks += s->committed / PAGE;
	if (s->committed < (n - 1) * PAGE)
		states_step(w, s, (n - 1) * PAGE);
	image = n > 1 ? states_capture_begins(w, s, IMAGE_CHECKPOINT, false, NULL) : IMAGE_NONE;
	if (image != IMAGE_NONE)
		states_capture_ends(w, image, 0);
	world_close(&s);
	states_settle(w);
}

static struct found replay(const struct trace *t, enum retain_policy order, uint32_t blocks)
{
	struct states w;
	struct found found = {0};

	states_init(&w,
		    &(struct states_limits){
			.pages = DEVICE, .units = blocks, .image_units = IMAGE, .order = order});
	for (size_t i = 0; i < t->n_requests; i++)
		serve(&w, t->ids + t->requests[i].first_id, t->requests[i].n_ids, &found);
	states_check(&w);
	states_deinit(&w);
	return found;
}

/* ---- requests that are made up ---- */

#define TALKS    24u
#define TURNS    6u
#define REQUESTS 1500u

struct made { /* agents' conversations, and prompts that come once */
	uint32_t ids[REQUESTS * (TURNS + 1)];
	struct trace_request requests[REQUESTS];
	struct trace trace;
};

static void make(struct made *m, uint32_t one_in)
{
	struct {
		uint32_t first, turn;
	} talk[TALKS] = {{0}};
	uint32_t next = 1, n_ids = 0;

	seed = 7;
	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint32_t which = below(TALKS), n = 4;
		bool once = below(one_in) == 0;

		if (!once) {
			if (talk[which].turn++ % TURNS == 0) {
				talk[which].first = next;
				talk[which].turn = 1;
				next += TURNS + 1;
			}
			n = talk[which].turn + 1;
		}
		m->requests[i] = (struct trace_request){.first_id = n_ids, .n_ids = n};
		for (uint32_t k = 0; k < n; k++)
			m->ids[n_ids++] = once ? next++ : talk[which].first + k;
	}
	m->trace = (struct trace){
	    .requests = m->requests, .ids = m->ids, .n_requests = REQUESTS, .n_ids = n_ids};
}

static struct found find_made(uint32_t one_in, enum retain_policy order)
{
	struct made *m = malloc(sizeof(*m));
	struct found found;

	assert_non_null(m);
	make(m, one_in);
	found = replay(&m->trace, order, 150);
	print_message("# %s: %u opens find %u blocks\n", order == RETAIN_LRU ? "lru" : "learned",
		      found.opens, found.blocks);
	free(m);
	return found;
}

static void conversations_are_found_among_prompts_that_come_once(void **state)
{
	struct found lru = find_made(2, RETAIN_LRU), learned = find_made(2, RETAIN_LEARNED);

	(void)state;
	assert_true(lru.blocks > 0);
	assert_true(100ull * learned.blocks >= 125ull * lru.blocks);
}

static void where_all_is_alike_nothing_is_lost(void **state)
{
	struct found lru = find_made(UINT32_MAX, RETAIN_LRU);
	struct found learned = find_made(UINT32_MAX, RETAIN_LEARNED);

	(void)state;
	assert_true(1000ull * learned.blocks >= 985ull * lru.blocks);
}

/* ---- a trace ---- */

static int tell(const char *path)
{
	static const uint32_t blocks[] = {1000, 2000, 5000, 10000, 20000, 50000};
	struct bench_reason why;
	struct trace t;

	if (trace_load(&t, path, &why)) {
		fprintf(stderr, "test_states_replay: %s\n", why.text);
		return 2;
	}
	for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) {
		for (int order = RETAIN_LRU; order <= RETAIN_LEARNED; order++) {
			struct found found = replay(&t, (enum retain_policy)order, blocks[i]);

			printf("{\"blocks\": %u, \"order\": \"%s\", \"opens\": %u, \"found\": "
			       "%u}\n",
			       blocks[i], order == RETAIN_LRU ? "lru" : "learned", found.opens,
			       found.blocks);
		}
	}
	trace_free(&t);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(conversations_are_found_among_prompts_that_come_once),
	    cmocka_unit_test(where_all_is_alike_nothing_is_lost),
	};

	if (argc > 1)
		return tell(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
