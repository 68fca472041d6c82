/* SPDX-License-Identifier: Apache-2.0 */
/* live: see live.h. */
#include "tests/sim/live.h"

#include "daemon/front/sequence.h"

struct seq *live_seq_of(struct sim *w, const struct sim_view *v)
{
	const struct sequence *q =
	    slots_find(&w->core.sequences, (struct slot_handle){v->index, v->generation});

	return q ? q->seq : NULL;
}

void live_read_again(struct sim *w, struct sim_view *v, uint32_t n)
{
	const struct seq *s = live_seq_of(w, v);
	const struct pages *pages = &sim_pool(w)->pages;

	for (uint32_t i = 0; s && !seq_is_away(s) && i < n && i < s->n_pages; i++) {
		bool replaced = s->step.replaced != PAGE_NONE && i == s->step.first - s->first_page;
		uint32_t page = replaced ? s->step.replaced : s->table[i];

		v->table[i].index = page;
		v->table[i].generation = pages->page[page].generation;
	}
}

bool live_is_known(struct sim *w, const struct sim_view *v)
{
	const struct seq *s = live_seq_of(w, v);

	return !s || (!seq_is_away(s) && s->told_version == s->table_version);
}

static bool ranks_below(const struct seq *a, const struct seq *b)
{
	if (a->rank.interactive != b->rank.interactive)
		return b->rank.interactive;
	return a->rank.serial > b->rank.serial;
}

/* Nobody but it has its last page, and nothing is done with it. */
static bool could_give(const struct pool *p, const struct seq *s)
{
	uint32_t n = s->n_pages - s->away;
	const struct page *last;

	if (n == 0 || s->step.state != STEP_NONE || s->busy || s->lost ||
	    list_is_empty(&s->in_rank))
		return false;
	last = &p->pages.page[s->table[n - 1]];
	if (last->state == PAGE_PRIVATE)
		return last->references == 1;
	return p->prefix.nodes[last->next].users == 1 &&
	       p->prefix.nodes[last->next].children_in[TIER_DEVICE] == 0;
}

bool live_is_crowded(const struct pool *p)
{
	return p->ceilings + p->surplus > p->limits.pages;
}

bool live_may_wait(struct sim *w, const struct sim_view *v)
{
	const struct pool *p = sim_pool(w);
	const struct seq *mine = live_seq_of(w, v);

	if (!w->spill.on || !mine || !live_is_crowded(p))
		return false;
	list_for_each(link, following, &p->members)
	{
		const struct seq *s = list_entry(link, struct seq, in_pool);

		if (s != mine && ranks_below(s, mine) && could_give(p, s))
			return false;
	}
	return true;
}
