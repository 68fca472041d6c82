/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_rows: bytes through libkvhost: rows of K and V, the window, long answers.
 *
 * One thread for the client and one for the fake daemon.
 */
#include "libclient/kvhost.h"

#include <stdlib.h>

#include "libclient/internal.h"
#include "tests/unit/client_world.h"

static void rows_come_back_as_they_were_written(void **state)
{
	struct world w = begin_world(state);
	char rows[10 * 16], back[10 * 16];
	char *mine = kvhost_window_take(w.host, sizeof(rows));
	uint64_t offset = (uint64_t)(mine - w.host->window.memory);

	for (size_t i = 0; i < sizeof(rows); i++)
		rows[i] = (char)i;
	assert_int_equal(kvhost_step_begin(w.seq, 32, 0, &w.step), 0);
	assert_int_equal(
	    kvhost_kv_write(&w.step, 0, KVHOST_K, 20, 10, KVHOST_BFLOAT16, rows, sizeof(rows)), 0);
	assert_int_equal(kvhost_kv_read(w.seq, &w.step, 0, KVHOST_K, 20, 10, KVHOST_BFLOAT16, back,
					sizeof(back)),
			 0);
	assert_memory_equal(rows, back, sizeof(rows));
	memset(mine, 9, sizeof(rows));
	assert_int_equal(
	    kvhost_kv_write(&w.step, 0, KVHOST_K, 20, 10, KVHOST_BFLOAT16, mine, sizeof(rows)), 0);
	assert_true(fake_look(w.f).rows_in_offset == offset - sizeof(struct payload_rows));
	memset(mine, 0, sizeof(rows));
	assert_int_equal(
	    kvhost_kv_read(w.seq, NULL, 0, KVHOST_K, 20, 10, KVHOST_BFLOAT16, mine, sizeof(rows)),
	    0);
	assert_true(fake_look(w.f).rows_out_offset == offset);
	assert_int_equal(mine[159], 9);
	kvhost_disconnect(&w.host);
}

static void two_writes_of_the_same_memory_do_not_share_a_head(void **state)
{
	struct world w = begin_world(state);
	char *mine = kvhost_window_take(w.host, 160);
	struct kvhost_finished done;
	kvhost_ticket t;

	memset(mine, 5, 160);
	assert_int_equal(kvhost_step_begin(w.seq, 64, 0, &w.step), 0);
	assert_int_equal(kvhost_submit_kv_write(&w.step, 0, KVHOST_K, 20, 10, KVHOST_BFLOAT16, mine,
						160, NULL, &t),
			 0);
	assert_int_equal(kvhost_submit_kv_write(&w.step, 0, KVHOST_K, 30, 10, KVHOST_BFLOAT16, mine,
						160, NULL, &t),
			 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(kvhost_wait(w.host, 0, PATIENCE_US, &done), 0);
		assert_int_equal(done.result, 0);
	}
	assert_int_equal(fake_sync(w.f)->rows[20 * 16], 5);
	assert_int_equal(fake_sync(w.f)->rows[40 * 16 - 1], 5);
	kvhost_disconnect(&w.host);
}

static void rows_larger_than_the_window_go_in_pieces(void **state)
{
	struct fake *f = *state;
	const uint32_t n = 900;
	char *rows = calloc(n, 16), *back = calloc(n, 16);
	struct world w;

	f->script.window_bytes = 8192;
	w = begin_world(state);
	for (uint32_t i = 0; i < n * 16; i++)
		rows[i] = (char)(i * 7);
	assert_int_equal(kvhost_step_begin(w.seq, 950, 0, &w.step), 0);
	assert_int_equal(
	    kvhost_kv_write(&w.step, 0, KVHOST_V, 20, n, KVHOST_BFLOAT16, rows, n * 16), 0);
	assert_true(fake_look(f).writes >= n * 16 / 8192);
	assert_int_equal(
	    kvhost_kv_read(w.seq, &w.step, 0, KVHOST_V, 20, n, KVHOST_BFLOAT16, back, n * 16), 0);
	assert_memory_equal(rows, back, n * 16);
	free(rows);
	free(back);
	kvhost_disconnect(&w.host);
}

static void rows_of_another_size_than_the_layer_says_are_refused_here(void **state)
{
	struct world w = begin_world(state);
	char rows[160] = {0};

	assert_int_equal(kvhost_step_begin(w.seq, 64, 0, &w.step), 0);
	assert_int_equal(
	    kvhost_kv_write(&w.step, 0, KVHOST_K, 20, 10, KVHOST_FLOAT32, rows, sizeof(rows)),
	    KVHOST_EINVAL);
	assert_int_equal(
	    kvhost_kv_write(&w.step, 2, KVHOST_K, 20, 10, KVHOST_FLOAT16, rows, sizeof(rows)),
	    KVHOST_EINVAL);
	assert_int_equal(kvhost_kv_write(&w.step, 0, KVHOST_K, 20, 10, (enum kvhost_format)9, rows,
					 sizeof(rows)),
			 KVHOST_EINVAL);
	kvhost_disconnect(&w.host);
}

static void a_window_full_of_the_callers_own_memory_says_so(void **state)
{
	struct fake *f = *state;
	struct kvhost_prompt prompt = {.tokens = tokens, .n_tokens = 40};
	struct kvhost_sequence *other = NULL;
	struct world w;
	void *all;

	f->script.window_bytes = 8192;
	w = begin_world(state);
	all = kvhost_window_take(w.host, 8192 - 128);
	assert_non_null(all);
	assert_int_equal(kvhost_open(w.pool, &prompt, &other, NULL), KVHOST_EFULL);
	assert_int_equal(kvhost_ping(w.host), 0);
	kvhost_window_give(w.host, all);
	assert_int_equal(kvhost_open(w.pool, &prompt, &other, NULL), 0);
	kvhost_disconnect(&w.host);
}

static void an_answer_that_does_not_fit_is_asked_for_again(void **state)
{
	struct fake *f = *state;
	struct kvhost *host;
	char *text = NULL;

	fake_start(f);
	host = fake_connect(f);
	assert_int_equal(kvhost_ask(host, "health", NULL, &text), 0);
	assert_int_equal(strlen(text), 40000);
	free(text);
	assert_int_equal(kvhost_ask(host, "weather", NULL, &text), KVHOST_EINVAL);
	kvhost_disconnect(&host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(rows_come_back_as_they_were_written),
	    TEST(two_writes_of_the_same_memory_do_not_share_a_head),
	    TEST(rows_larger_than_the_window_go_in_pieces),
	    TEST(rows_of_another_size_than_the_layer_says_are_refused_here),
	    TEST(a_window_full_of_the_callers_own_memory_says_so),
	    TEST(an_answer_that_does_not_fit_is_asked_for_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
