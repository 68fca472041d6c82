/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_objects: pools, sequences, steps and bytes through libkvhost, against a daemon that
 * keeps to a script and records what it was asked.
 *
 * One thread for the client and one for the fake daemon, which is read here only between its
 * answer and the next request.
 */
#include "libclient/kvhost.h"

#include <unistd.h>

#include "libclient/internal.h"
#include "tests/unit/client_world.h"

static void look(struct world *w, uint32_t n_pages, uint32_t last_index)
{
	kvhost_view(w->seq, &w->table);
	assert_int_equal(w->table.n_pages, n_pages);
	if (n_pages)
		assert_int_equal(w->table.pages[n_pages - 1].index, last_index);
}

/* ---- pools ---- */

static void a_pool_is_described_as_the_daemon_made_it(void **state)
{
	struct fake *f = *state;
	const struct kvhost_pool_info *info;
	struct kvhost_pool *pool;
	struct kvhost *host;

	fake_start(f);
	host = fake_connect(f);
	pool = fake_attach(host, 0);
	info = kvhost_pool_describe(pool);
	assert_int_equal(info->pages, FAKE_PAGES);
	assert_int_equal(info->page_tokens, FAKE_PAGE_TOKENS);
	assert_int_equal(info->n_layers, 2);
	assert_int_equal(info->blocks[1].v_offset, 256);
	assert_null(info->memory);
	assert_int_equal(kvhost_pool_detach(&pool), 0);
	assert_null(pool);
	kvhost_disconnect(&host);
}

static void a_pool_is_mapped_from_its_parts_whenever_they_arrive(void **state)
{
	(void)state;
	for (int way = 0; way < 4; way++) {
		struct fake *f = fake_new();
		const struct kvhost_pool_info *info;
		struct kvhost_pool *pool;
		struct kvhost *host;

		f->script.map_parts = way < 2 ? 1 : 2;
		f->script.late_segments = way % 2;
		fake_start(f);
		host = fake_connect(f);
		pool = fake_attach(host, 1);
		info = kvhost_pool_describe(pool);
		assert_non_null(info->memory);
		assert_int_equal(*(uint32_t *)info->memory, 1000);
		if (way >= 2)
			assert_int_equal(*(uint32_t *)((char *)info->memory +
						       FAKE_PAGES / 2 * info->page_stride),
					 1001);
		((char *)info->memory)[FAKE_PAGES * info->page_stride - 1] = 1;
		assert_int_equal(kvhost_pool_detach(&pool), 0);
		kvhost_disconnect(&host);
		fake_free(&f);
	}
}

static void a_segment_smaller_than_its_pages_is_a_violation(void **state)
{
	struct fake *f = *state;
	struct kvhost_layer layer = {.kv_heads = 1, .k_head_dim = 8, .v_head_dim = 8};
	struct kvhost_pool_description d = {.n_layers = 1, .layers = &layer, .map = 1};
	struct kvhost_pool *pool = NULL;
	struct kvhost *host;

	f->script.map_parts = 2;
	f->script.short_segment = true;
	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_pool_attach(host, &d, &pool), KVHOST_EVIOLATION);
	assert_null(pool);
	assert_int_equal(kvhost_ping(host), KVHOST_EGONE);
	kvhost_disconnect(&host);
}

static void a_description_that_cannot_be_is_refused_here(void **state)
{
	struct fake *f = *state;
	struct kvhost_layer layer = {.kv_heads = 1, .k_head_dim = 8, .k_format = 256};
	struct kvhost_section section = {.name = "", .bytes = 1};
	struct kvhost_pool_description d = {.n_layers = 0, .layers = &layer};
	struct kvhost_pool *pool = NULL;
	struct kvhost *host;

	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_pool_attach(host, &d, &pool), KVHOST_EINVAL);
	d.n_layers = 1;
	assert_int_equal(kvhost_pool_attach(host, &d, &pool), KVHOST_EINVAL);
	layer.k_format = 1;
	d.sections = &section;
	d.n_sections = 1;
	assert_int_equal(kvhost_pool_attach(host, &d, &pool), KVHOST_EINVAL);
	section.name = "recurrent";
	assert_int_equal(kvhost_pool_attach(host, &d, &pool), 0);
	kvhost_disconnect(&host);
}

/* ---- sequences ---- */

static void open_tells_what_was_found_and_where_it_lies(void **state)
{
	struct fake *f = *state;
	struct kvhost_span span = {.start = 3, .length = 2};
	struct kvhost_prompt prompt = {
	    .tokens = tokens, .n_tokens = 40, .spans = &span, .n_spans = 1};
	struct kvhost_open_result found;
	struct world w = {.f = f};

	f->script.cached_tokens = 20;
	fake_start(f);
	w.host = fake_connect(f);
	w.pool = fake_attach(w.host, 0);
	assert_int_equal(kvhost_lookup(w.pool, &prompt, &found), 0);
	assert_int_equal(found.cached_tokens, 20);
	assert_int_equal(kvhost_open(w.pool, &prompt, &w.seq, &found), 0);
	assert_int_equal(found.cached_tokens, 20);
	assert_int_equal(found.miss, KVHOST_MISS_DIVERGED);
	assert_int_equal(kvhost_committed(w.seq), 20);
	look(&w, 2, 11);
	assert_int_equal(fake_look(f).open_seen.n_tokens, 40);
	assert_int_equal(fake_look(f).open_seen.max_tokens, 40);
	assert_true(fake_look(f).open_seen.max_cached_tokens == PAYLOAD_NO_LIMIT);
	assert_int_equal(fake_look(f).open_tokens[3], 503);
	assert_int_equal(kvhost_close(&w.seq), 0);
	assert_null(w.seq);
	assert_int_equal(kvhost_close(&w.seq), 0);
	prompt.n_tokens = 0;
	assert_int_equal(kvhost_open(w.pool, &prompt, &w.seq, &found), KVHOST_EINVAL);
	kvhost_disconnect(&w.host);
}

static void a_prompt_in_the_window_is_not_copied(void **state)
{
	struct world w = begin_world(state);
	uint32_t *mine = kvhost_window_take(w.host, 40 * 4);
	struct kvhost_prompt prompt = {.tokens = mine, .n_tokens = 40};
	uint64_t offset = (uint64_t)((char *)mine - w.host->window.memory);
	struct kvhost_span spans[2] = {{.start = 1, .length = 1}, {.start = 3, .length = 1}};
	struct kvhost_sequence *other;

	memcpy(mine, tokens, 40 * 4);
	assert_int_equal(kvhost_open(w.pool, &prompt, &other, NULL), 0);
	assert_true(fake_look(w.f).open_in_offset == offset - sizeof(struct payload_open));
	assert_int_equal(fake_look(w.f).open_tokens[2], 502);
	assert_int_equal(kvhost_close(&other), 0);
	/* Two spans do not fit in front of it any more. */
	prompt.spans = spans;
	prompt.n_spans = 2;
	assert_int_equal(kvhost_open(w.pool, &prompt, &other, NULL), 0);
	assert_true(fake_look(w.f).open_in_offset != offset - 2 * 40 - sizeof(struct payload_open));
	assert_int_equal(fake_look(w.f).open_tokens[2], 502);
	kvhost_disconnect(&w.host);
}

static void more_cached_than_asked(struct fake *f, const struct submission *s,
				   struct fake_answer *a)
{
	(void)f;
	if (s->opcode == WIRE_OP_OPEN)
		a->c.value0 = 41;
}

static void an_open_answer_that_contradicts_itself_is_a_violation(void **state)
{
	struct fake *f = *state;
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = 40};
	struct kvhost_sequence *seq = NULL;
	struct kvhost_pool *pool;
	struct kvhost *host;

	f->script.answer = more_cached_than_asked;
	fake_start(f);
	host = fake_connect(f);
	pool = fake_attach(host, 0);
	assert_int_equal(kvhost_open(pool, &prompt, &seq, NULL), KVHOST_EVIOLATION);
	assert_null(seq);
	kvhost_disconnect(&host);
}

static void a_fork_has_the_pages_of_its_parent(void **state)
{
	struct world w = begin_world(state);
	struct kvhost_sequence *fork = NULL;
	struct kvhost_table t;

	assert_int_equal(kvhost_fork(w.seq, 0, &fork), 0);
	kvhost_view(fork, &t);
	assert_int_equal(t.n_pages, 2);
	assert_int_equal(t.pages[1].index, 11);
	assert_int_equal(kvhost_committed(fork), 20);
	assert_int_equal(kvhost_close(&fork), 0);
	assert_int_equal(kvhost_truncate(w.seq, 16), 0);
	look(&w, 1, 10);
	assert_int_equal(kvhost_truncate(w.seq, 0), 0);
	look(&w, 0, 0);
	kvhost_disconnect(&w.host);
}

/* ---- steps ---- */

static void a_step_adds_its_pages_and_commit_names_them(void **state)
{
	struct world w = begin_world(state);
	uint32_t ids[2] = {7, 8};

	/* The partial page is replaced: table entry 1 is another page now. */
	fake_sync(w.f)->script.first_new_page = 1;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_begin(w.seq, 50, 0, &w.step), 0);
	assert_int_equal(w.step.start_tokens, 20);
	assert_int_equal(w.step.target_tokens, 50);
	look(&w, 4, 33);
	assert_int_equal(w.table.pages[0].index, 10);
	assert_int_equal(w.table.pages[1].index, 31);
	/* 20 .. 41 lie in pages 1 and 2; two positions are behind the prompt. */
	assert_int_equal(kvhost_step_commit(&w.step, 22, ids, 2, NULL, 0), 0);
	assert_int_equal(fake_look(w.f).receipt_seen.n_pages, 2);
	assert_int_equal(fake_look(w.f).receipt_seen.tokens_commit, 22);
	assert_int_equal(fake_look(w.f).receipt_pages[0].index, 31);
	assert_int_equal(fake_look(w.f).receipt_pages[1].index, 32);
	assert_int_equal(fake_look(w.f).receipt_seen.n_tokens, 2);
	assert_int_equal(fake_look(w.f).receipt_ids[1], 8);
	assert_int_equal(kvhost_committed(w.seq), 42);
	look(&w, 3, 32);
	assert_int_equal(fake_look(w.f).tables_read, 0);
	assert_int_equal(kvhost_step_commit(&w.step, 1, NULL, 0, NULL, 0), KVHOST_ESTALE);
	kvhost_disconnect(&w.host);
}

static void more_than_the_step_cannot_be_committed(void **state)
{
	struct world w = begin_world(state);

	assert_int_equal(kvhost_step_begin(w.seq, 24, 0, &w.step), 0);
	assert_int_equal(kvhost_step_commit(&w.step, 5, NULL, 0, NULL, 0), KVHOST_EINVAL);
	assert_int_equal(kvhost_step_commit(&w.step, 2, tokens, 3, NULL, 0), KVHOST_EINVAL);
	assert_int_equal(kvhost_step_commit(&w.step, 4, NULL, 0, NULL, 0), 0);
	kvhost_disconnect(&w.host);
}

static void abort_takes_the_new_pages_away_and_may_be_repeated(void **state)
{
	struct world w = begin_world(state);
	uint32_t before;

	assert_int_equal(kvhost_step_begin(w.seq, 50, 0, &w.step), 0);
	look(&w, 4, 33);
	assert_int_equal(kvhost_step_abort(&w.step), 0);
	look(&w, 2, 11);
	before = fake_sync(w.f)->submissions;
	assert_int_equal(kvhost_step_abort(&w.step), 0);
	assert_int_equal(fake_sync(w.f)->submissions, before);
	kvhost_disconnect(&w.host);
}

static void abort_of_a_replaced_page_reads_the_table_again(void **state)
{
	struct world w = begin_world(state);

	fake_sync(w.f)->script.first_new_page = 1;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_begin(w.seq, 30, 0, &w.step), 0);
	look(&w, 2, 31);
	fake_sync(w.f)->table[1].index = 11;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_abort(&w.step), 0);
	assert_int_equal(fake_look(w.f).tables_read, 1);
	look(&w, 2, 11);
	assert_int_equal(w.table.version, 11);
	kvhost_disconnect(&w.host);
}

static void a_changed_table_is_read_before_the_call_returns(void **state)
{
	struct world w = begin_world(state);

	assert_int_equal(kvhost_step_begin(w.seq, 32, 0, &w.step), 0);
	fake_sync(w.f)->table[0].index = 77;
	fake_sync(w.f)->script.table_changed = true;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_commit(&w.step, 12, NULL, 0, NULL, 0), 0);
	assert_int_equal(fake_look(w.f).tables_read, 1);
	look(&w, 2, 11);
	assert_int_equal(w.table.pages[0].index, 77);
	assert_int_equal(w.table.version, 11);
	kvhost_disconnect(&w.host);
}

static void a_changed_table_is_read_before_an_async_commit_is_handed_back(void **state)
{
	struct world w = begin_world(state);
	struct kvhost_finished done;
	kvhost_ticket t;

	assert_int_equal(kvhost_submit_step_begin(w.seq, 32, 0, &w.step, NULL, &t), 0);
	assert_int_equal(kvhost_wait(w.host, t, PATIENCE_US, &done), 0);
	assert_int_equal(done.result, 0);
	fake_sync(w.f)->table[0].index = 77;
	fake_sync(w.f)->script.table_changed = true;
	fake_sync(w.f);
	assert_int_equal(kvhost_submit_step_commit(&w.step, 12, NULL, 0, NULL, 0, NULL, &t), 0);
	assert_int_equal(kvhost_wait(w.host, 0, PATIENCE_US, &done), 0);
	assert_true(done.ticket == t && done.result == 0);
	assert_int_equal(fake_look(w.f).tables_read, 1);
	assert_int_equal(kvhost_committed(w.seq), 32);
	look(&w, 2, 11);
	assert_int_equal(w.table.pages[0].index, 77);
	kvhost_disconnect(&w.host);
}

static void pages_before_the_window_are_gone_after_commit(void **state)
{
	struct world w = begin_world(state);

	assert_int_equal(kvhost_step_begin(w.seq, 48, 17, &w.step), 0);
	look(&w, 3, 32);
	/* The first page falls out; position p is one page further to the front. */
	memmove(&fake_sync(w.f)->table[0], &fake_sync(w.f)->table[1],
		2 * sizeof(fake_sync(w.f)->table[0]));
	fake_sync(w.f)->n_table = 2;
	fake_sync(w.f)->table_offset = FAKE_PAGE_TOKENS;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_commit(&w.step, 28, NULL, 0, NULL, 0), 0);
	assert_int_equal(fake_look(w.f).tables_read, 1);
	look(&w, 2, 32);
	fake_sync(w.f)->script.first_new_page = 2;
	fake_sync(w.f)->n_table = 2;
	fake_sync(w.f);
	assert_int_equal(kvhost_step_begin(w.seq, 49, 17, &w.step), 0);
	look(&w, 4, 33);
	assert_true(w.table.first_token == FAKE_PAGE_TOKENS);
	/* Position 48 lies in the third page that is left. */
	assert_int_equal(kvhost_step_commit(&w.step, 1, NULL, 0, NULL, 0), 0);
	assert_int_equal(fake_look(w.f).receipt_pages[0].index, 32);
	kvhost_disconnect(&w.host);
}

static void another_count(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	if (s->opcode == WIRE_OP_STEP_COMMIT)
		a->c.value0++;
	if (s->opcode == WIRE_OP_TABLE)
		a->c.count = 1u << 30;
	if (s->opcode == WIRE_OP_STEP_BEGIN && s->arg0 == 33)
		a->c.count = 1u << 30;
}

static void a_commit_of_another_count_is_a_violation(void **state)
{
	struct fake *f = *state;
	struct world w;

	f->script.answer = another_count;
	w = begin_world(state);
	assert_int_equal(kvhost_step_begin(w.seq, 32, 0, &w.step), 0);
	assert_int_equal(kvhost_step_commit(&w.step, 12, NULL, 0, NULL, 0), KVHOST_EVIOLATION);
	kvhost_disconnect(&w.host);
}

static void a_table_longer_than_a_sequence_is_a_violation(void **state)
{
	struct fake *f = *state;
	struct world w;

	f->script.answer = another_count;
	w = begin_world(state);
	/* More new pages than the range holds: the whole table is asked for, and is absurd. */
	assert_int_equal(kvhost_step_begin(w.seq, 33, 0, &w.step), KVHOST_EVIOLATION);
	assert_int_equal(kvhost_ping(w.host), KVHOST_EGONE);
	kvhost_disconnect(&w.host);
}

static void hold_begin(struct fake *f, const struct submission *s, struct fake_answer *a)
{
	(void)f;
	a->none = s->opcode == WIRE_OP_STEP_BEGIN;
}

static void close_goes_when_the_credits_are_used_up(void **state)
{
	struct fake *f = *state;
	struct kvhost_sequence *seq;
	struct kvhost_finished done;
	struct kvhost_step steps[FAKE_CREDITS];
	kvhost_ticket t;
	struct world w;

	f->script.answer = hold_begin;
	w = begin_world(state);
	seq = w.seq;
	for (int i = 0; i < FAKE_CREDITS; i++)
		assert_int_equal(kvhost_submit_step_begin(seq, 50, 0, &steps[i], NULL, &t), 0);
	assert_int_equal(kvhost_submit_close(&w.seq, NULL, &t), 0);
	assert_int_equal(kvhost_wait(w.host, t, PATIENCE_US, &done), 0);
	assert_int_equal(done.result, 0);
	assert_null(w.seq);
	/* The begins still name the sequence; its memory outlives them. */
	fake_stop(f);
	for (int i = 0; i < FAKE_CREDITS; i++) {
		assert_int_equal(kvhost_wait(w.host, 0, PATIENCE_US, &done), 0);
		assert_int_equal(done.result, KVHOST_EGONE);
	}
	kvhost_disconnect(&w.host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_pool_is_described_as_the_daemon_made_it),
	    TEST(a_pool_is_mapped_from_its_parts_whenever_they_arrive),
	    TEST(a_segment_smaller_than_its_pages_is_a_violation),
	    TEST(a_description_that_cannot_be_is_refused_here),
	    TEST(open_tells_what_was_found_and_where_it_lies),
	    TEST(a_prompt_in_the_window_is_not_copied),
	    TEST(an_open_answer_that_contradicts_itself_is_a_violation),
	    TEST(a_fork_has_the_pages_of_its_parent),
	    TEST(a_step_adds_its_pages_and_commit_names_them),
	    TEST(more_than_the_step_cannot_be_committed),
	    TEST(abort_takes_the_new_pages_away_and_may_be_repeated),
	    TEST(abort_of_a_replaced_page_reads_the_table_again),
	    TEST(a_changed_table_is_read_before_the_call_returns),
	    TEST(a_changed_table_is_read_before_an_async_commit_is_handed_back),
	    TEST(pages_before_the_window_are_gone_after_commit),
	    TEST(a_commit_of_another_count_is_a_violation),
	    TEST(a_table_longer_than_a_sequence_is_a_violation),
	    TEST(close_goes_when_the_credits_are_used_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
