/* SPDX-License-Identifier: Apache-2.0 */
/* core_prompt: prompts of a core_world; see core_world.h. One thread; nothing blocks. */
#include <string.h>

#include "tests/unit/core_world.h"

#define SHARED_PAGES 2u
#define SHARED       999u
#define TOKENS       10000u /* a prompt's tokens are numbers from a multiple of this on */

static uint32_t owner_of(const struct core_prompt *p, uint32_t page)
{
	return page < SHARED_PAGES && p->number < CORE_ALONE ? SHARED : p->number;
}

static const struct core_pool *pool_of(const struct core_prompt *p)
{
	return p->client->world->core.pool[p->client->at];
}

static char *page_of(const struct core_pool *p, uint32_t page)
{
	return (char *)p->memory.segment.memory + page * p->geometry.page_stride;
}

static uint64_t first_word(uint32_t owner, uint32_t page)
{
	return ((uint64_t)owner << 40 | (uint64_t)page << 32) * 0x9e3779b97f4a7c15u;
}

/* How many words are right. */
static uint64_t count_right(uint32_t owner, uint32_t page, const uint64_t *at, uint64_t words)
{
	uint64_t i = 0;

	while (i < words && at[i] == first_word(owner, page) + i)
		i++;
	return i;
}

bool core_page_is(const uint32_t *tokens, uint32_t page, const void *bytes, uint64_t n)
{
	uint32_t owner = tokens[0] / TOKENS;

	for (uint32_t i = 0; i < CORE_PAGE; i++) {
		if (tokens[i] != owner * TOKENS + page * CORE_PAGE + i)
			return false;
	}
	return count_right(owner, page, bytes, n / 8) == n / 8;
}

static void write_page(const struct core_prompt *p, uint32_t page)
{
	uint64_t words = pool_of(p)->geometry.page_stride / 8;
	uint64_t *at = (uint64_t *)(void *)page_of(pool_of(p), p->table[page].index);

	for (uint64_t i = 0; i < words; i++)
		at[i] = first_word(owner_of(p, page), page) + i;
}

static void check_page(const struct core_prompt *p, uint32_t page)
{
	uint64_t words = pool_of(p)->geometry.page_stride / 8;
	const void *at = page_of(pool_of(p), p->table[page].index);
	uint64_t right = count_right(owner_of(p, page), page, at, words);

	core_check(p->client->world, right == words,
		   "page %u of prompt %u is wrong from word %llu on", page, p->number,
		   (unsigned long long)right);
}

void core_open(struct core_prompt *p, struct core_client *c, uint32_t number, uint32_t pages)
{
	struct {
		struct payload_open open;
		uint32_t tokens[CORE_PROMPT_PAGES * CORE_PAGE + 1];
	} in = {.open = {.n_tokens = pages * CORE_PAGE + 1, .max_cached_tokens = PAYLOAD_NO_LIMIT}};
	struct submission e = {
	    .opcode = WIRE_OP_OPEN, .index = c->pool.index, .generation = c->pool.generation};

	*p = (struct core_prompt){.client = c, .number = number, .pages = pages};
	for (uint32_t i = 0; i < in.open.n_tokens; i++)
		in.tokens[i] = owner_of(p, i / CORE_PAGE) * TOKENS + i;
	p->asked =
	    core_ask(c, &e, &in, (uint32_t)(sizeof(in.open) + in.open.n_tokens * sizeof(uint32_t)));
}

int core_opened(struct core_prompt *p)
{
	struct core_client *c = p->client;
	const struct payload_open_result *out = core_answer(c, p->asked);
	const struct completion *reply = &c->replies[p->asked % CORE_SLOTS];
	int status = core_await(c, p->asked);

	if (status)
		return status;
	p->sequence = (struct payload_handle){reply->index, reply->generation};
	p->cached_tokens = out->cached_tokens;
	p->miss = out->miss;
	p->tier = out->tier;
	core_check(c->world,
		   out->n_pages == out->cached_tokens / CORE_PAGE && out->n_pages <= p->pages,
		   "an open found %u tokens in %u pages", out->cached_tokens, out->n_pages);
	memcpy(p->table, out + 1, out->n_pages * sizeof(*p->table));
	for (uint32_t i = 0; i < out->n_pages; i++)
		check_page(p, i);
	return 0;
}

static int commit(struct core_prompt *p, uint32_t first, uint32_t end, uint32_t tokens)
{
	struct {
		struct payload_receipt receipt;
		struct payload_handle pages[CORE_PROMPT_PAGES + 1];
	} in = {.receipt = {.n_pages = end - first, .tokens_commit = tokens}};
	struct submission e = {.opcode = WIRE_OP_STEP_COMMIT,
			       .index = p->step.index,
			       .generation = p->step.generation};

	memcpy(in.pages, p->table + first, (end - first) * sizeof(*p->table));
	return core_await(p->client, core_ask(p->client, &e, &in,
					      (uint32_t)(sizeof(in.receipt) +
							 (end - first) * sizeof(*p->table))));
}

int core_fill(struct core_prompt *p)
{
	struct core_client *c = p->client;
	uint32_t target = p->pages * CORE_PAGE + 1, first = p->cached_tokens / CORE_PAGE;
	struct payload_step in = {0};
	struct submission e = {.opcode = WIRE_OP_STEP_BEGIN,
			       .index = p->sequence.index,
			       .generation = p->sequence.generation,
			       .arg0 = target};
	uint64_t asked = core_ask(c, &e, &in, sizeof(in));
	const struct completion *reply = &c->replies[asked % CORE_SLOTS];
	int status = core_await(c, asked);

	if (status)
		return status;
	core_check(c->world, reply->count == p->pages + 1 - first, "a step has %u new pages",
		   reply->count);
	p->step = (struct payload_handle){reply->index, reply->generation};
	memcpy(p->table + first, core_answer(c, asked), reply->count * sizeof(*p->table));
	for (uint32_t i = first; i < p->pages; i++)
		write_page(p, i);
	c->world->now_ns += c->world->compute_ns;
	core_listen(c->world);
	return commit(p, first, p->pages + 1, target - p->cached_tokens);
}

int core_close(struct core_prompt *p)
{
	struct submission e = {.opcode = WIRE_OP_CLOSE,
			       .index = p->sequence.index,
			       .generation = p->sequence.generation};

	return core_await(p->client, core_ask(p->client, &e, NULL, 0));
}

int core_serve(struct core_client *c, uint32_t number, uint32_t pages, uint32_t *cached_pages)
{
	struct core_prompt p;
	int status, closed;

	core_open(&p, c, number, pages);
	status = core_opened(&p);
	if (status)
		return status;
	if (cached_pages)
		*cached_pages = p.cached_tokens / CORE_PAGE;
	status = core_fill(&p);
	for (uint32_t i = 0; i < pages && status == 0; i++)
		check_page(&p, i);
	/* It is closed whatever has become of its step. */
	closed = core_close(&p);
	return status ? status : closed;
}
