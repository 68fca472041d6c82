/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_identity: which requests share pages, and which never do.
 *
 * Shows that a pool is attached as what it is or not at all, with the field that differs in words;
 * that equal tokens in two pools never meet; and that lookup, open and commit agree on what is
 * known. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/engine.h"

#define PAGE_TOKENS 16
#define PROMPT      (8 * PAGE_TOKENS)

static const char config[] = "{\"pools\": ["
			     "{\"name\": \"first\", \"pool_pages\": 256, \"kv_page_size\": 16,"
			     " \"max_sequence_length\": 1024, \"enable_prefix_caching\": true},"
			     "{\"name\": \"second\", \"pool_pages\": 256, \"kv_page_size\": 16,"
			     " \"max_sequence_length\": 1024, \"enable_prefix_caching\": true}]}\n";

static struct daemon d;

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, config);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_remove(&d);
	return 0;
}

/* ---- what a pool is ---- */

static void describe(struct kvhost_pool_description *p, struct kvhost_layer layers[3],
		     uint8_t artifact[32])
{
	memset(artifact, 7, 32);
	for (int i = 0; i < 3; i++)
		layers[i] = (struct kvhost_layer){2, 32, 16, KVHOST_FLOAT16, KVHOST_FLOAT16};
	*p = (struct kvhost_pool_description){.name = "first",
					      .artifact = artifact,
					      .n_layers = 2,
					      .layers = layers,
					      .tensor_size = 2,
					      .pipeline_size = 2};
}

static void change(unsigned what, struct kvhost_pool_description *p, struct kvhost_layer *layers,
		   uint8_t *artifact)
{
	switch (what) {
	case 0:
		artifact[31] ^= 1;
		break;
	case 1:
		p->page_tokens = 32;
		break;
	case 2:
		p->n_layers = 3;
		break;
	case 3:
		p->tensor_rank = 1;
		break;
	case 4:
		p->tensor_size = 4;
		break;
	case 5:
		p->pipeline_rank = 1;
		break;
	case 6:
		p->pipeline_size = 3;
		break;
	case 7:
		p->rope_digest = 1;
		break;
	case 8:
		p->drafter = 1;
		break;
	case 9:
		p->draft_tokens = 4;
		break;
	case 10:
		layers[1].kv_heads = 4;
		break;
	case 11:
		layers[1].k_head_dim = 64;
		break;
	case 12:
		layers[1].v_head_dim = 32;
		break;
	case 13:
		layers[1].k_format = KVHOST_BFLOAT16;
		break;
	default:
		layers[1].v_format = KVHOST_BFLOAT16;
		break;
	}
}

static void another_model_or_shard_is_refused_by_the_field_that_differs(void **state)
{
	static const char *const fields[] = {
	    "artifact:",      "page_tokens:",   "n_layers:",    "tensor_rank:", "tensor_size:",
	    "pipeline_rank:", "pipeline_size:", "rope_digest:", "drafter:",     "draft_tokens:",
	    "kv_heads:",      "k_head_dim:",    "v_head_dim:",  "k_format:",    "v_format:"};
	struct kvhost_pool_description p;
	struct kvhost_layer layers[3];
	struct kvhost_pool *pool, *wrong;
	uint8_t artifact[32];
	struct engine e;

	(void)state;
	assert_int_equal(engine_connect(&e, d.socket), 0);
	describe(&p, layers, artifact);
	assert_int_equal(kvhost_pool_attach(e.host, &p, &pool), 0);
	for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		const char *reason;

		describe(&p, layers, artifact);
		change(i, &p, layers, artifact);
		assert_int_equal(kvhost_pool_attach(e.host, &p, &wrong), KVHOST_EMISMATCH);
		reason = kvhost_reason(e.host);
		assert_memory_equal(reason, fields[i], strlen(fields[i]));
		/* The size of pages is configured, all else is the first attach's. */
		assert_non_null(strstr(reason, i == 1 ? "; its kv_page_size would change it"
						      : "; another pool, or kvctl pool drop "));
	}
	describe(&p, layers, artifact);
	assert_int_equal(kvhost_pool_attach(e.host, &p, &wrong), 0);
	engine_stop(&e);
}

/* ---- what is found where ---- */

static uint32_t looked_up(struct engine *e, const uint32_t *tokens, uint32_t n)
{
	struct kvhost_open_result found = {0};

	assert_int_equal(kvhost_lookup(e->pool,
				       &(struct kvhost_prompt){.tokens = tokens, .n_tokens = n},
				       &found),
			 0);
	return found.cached_tokens;
}

/* What lookup says, open finds; both before and after the commit. */
static void serve(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t wanted)
{
	uint32_t cached = 0;

	assert_int_equal(looked_up(e, tokens, n), wanted);
	assert_int_equal(engine_serve(e, tokens, n, &cached), 0);
	assert_int_equal(cached, wanted);
	/* At least the last token is left to compute. */
	assert_int_equal(looked_up(e, tokens, n), (n - 1) / PAGE_TOKENS * PAGE_TOKENS);
}

static void equal_tokens_in_two_pools_never_meet(void **state)
{
	struct engine_model first = ENGINE_SMALL("first"), second = ENGINE_SMALL("second");
	uint32_t tokens[PROMPT], longer[2 * PROMPT];
	struct engine a, b;

	(void)state;
	/* The same model, two shards. */
	first.tensor_size = second.tensor_size = 2;
	second.tensor_rank = 1;
	assert_int_equal(engine_start(&a, d.socket, &first), 0);
	assert_int_equal(engine_start(&b, d.socket, &second), 0);
	engine_tokens(tokens, PROMPT, 0, 1);
	engine_tokens(longer, 2 * PROMPT, 0, 1);

	serve(&a, tokens, PROMPT, 0);
	serve(&b, tokens, PROMPT, 0);
	serve(&a, longer, 2 * PROMPT, PROMPT);
	assert_int_equal(looked_up(&b, longer, 2 * PROMPT), PROMPT);
	serve(&b, longer, 2 * PROMPT, PROMPT);
	serve(&a, tokens, PROMPT, PROMPT - PAGE_TOKENS);
	/* Two connections to one pool do meet. */
	engine_stop(&b);
	assert_int_equal(engine_start(&b, d.socket, &first), 0);
	serve(&b, tokens, PROMPT, PROMPT - PAGE_TOKENS);
	assert_true(engine_check(&a));
	engine_stop(&a);
	engine_stop(&b);
}

static struct kvhost_sequence *open_and_commit(struct engine *e, const uint32_t *tokens, uint32_t n)
{
	struct kvhost_sequence *seq = NULL;

	assert_int_equal(engine_prefill(e, tokens, n, PAGE_TOKENS, &seq, NULL), 0);
	return seq;
}

static void commit_more(struct kvhost_sequence *seq, const uint32_t *ids, uint32_t n)
{
	struct kvhost_step step;

	assert_int_equal(kvhost_step_begin(seq, kvhost_committed(seq) + n, 0, &step), 0);
	assert_int_equal(kvhost_step_commit(&step, n, ids, n, NULL, 0), 0);
}

/* The page was in the middle of what the first branch had made; that once ended the daemon. */
static void two_branches_may_compute_the_same_page(void **state)
{
	struct engine_model m = ENGINE_SMALL("first");
	uint32_t tokens[PROMPT], more[2 * PAGE_TOKENS];
	struct kvhost_sequence *trunk, *branch;
	struct engine e;

	(void)state;
	assert_int_equal(engine_start(&e, d.socket, &m), 0);
	engine_tokens(tokens, PROMPT, 0, 50);
	engine_tokens(more, 2 * PAGE_TOKENS, 0, 51);
	trunk = open_and_commit(&e, tokens, PROMPT);
	assert_int_equal(kvhost_fork(trunk, 1024, &branch), 0);
	assert_int_equal(kvhost_close(&trunk), 0);
	assert_int_equal(kvhost_fork(branch, 1024, &trunk), 0);
	commit_more(branch, more, 2 * PAGE_TOKENS);
	commit_more(trunk, more, 2 * PAGE_TOKENS);
	assert_int_equal(kvhost_close(&branch), 0);
	/* And one that was cut goes along what it had itself made. */
	assert_int_equal(kvhost_truncate(trunk, 2 * PAGE_TOKENS), 0);
	commit_more(trunk, tokens + 2 * PAGE_TOKENS, PROMPT - 2 * PAGE_TOKENS);
	assert_int_equal(kvhost_close(&trunk), 0);
	assert_true(engine_check(&e));
	engine_stop(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(
		another_model_or_shard_is_refused_by_the_field_that_differs, setup, teardown),
	    cmocka_unit_test_setup_teardown(equal_tokens_in_two_pools_never_meet, setup, teardown),
	    cmocka_unit_test_setup_teardown(two_branches_may_compute_the_same_page, setup,
					    teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
