/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_HABITS_H
#define KVHOST_TESTS_STATES_HABITS_H

/*
 * states_habits: what the learned order of a hybrid pool knows, for a model of its states: all that
 * wait in a list, ages and classes worked out anew each time. The table itself is that of
 * daemon/state/reuse.h. Nobody is forgotten: there are fewer texts than ghosts that are kept.
 */

#include "daemon/state/image.h"
#include "tests/unit/states_names.h"

#define GHOSTS 4096u

struct wont { /* of a state */
	uint64_t tick;
	uint32_t turn;
	bool reused;
};

struct gone {
	bool is, prefix;
	struct text text;
	struct wont wont;
};

static struct {
	bool on;
	uint64_t tick, refresh_at;
	struct reuse table;
	struct gone gone[GHOSTS];
	uint64_t hits, misses, evictions;
	uint32_t turn; /* of the open that was the last one */
} wonts;

static inline void wonts_begin(bool on)
{
	memset(&wonts, 0, sizeof(wonts));
	wonts.on = on;
	wonts.refresh_at = REUSE_REFRESH + 1;
	reuse_init(&wonts.table);
}

static inline uint32_t wont_cell(const struct wont *it)
{
	uint32_t class = it->turn * REUSE_PARTS + (it->reused ? RETAIN_REUSED : RETAIN_NEW);

	return reuse_cell(class, reuse_bucket(wonts.tick - it->tick));
}

static inline double wont_index(const struct wont *it)
{
	return wonts.table.index[wont_cell(it)];
}

/* Ghosts wait as well as the states that are there, which the caller has counted in. */
static inline void wonts_count_gone(void)
{
	for (uint32_t i = 0; i < GHOSTS; i++) {
		if (wonts.gone[i].is)
			wonts.table.waiting[wont_cell(&wonts.gone[i].wont)]++;
	}
}

static inline void wont_count_reused(const struct wont *it, bool hit)
{
	wonts.table.reused[wont_cell(it)] += 1;
	wonts.hits += hit;
	wonts.misses += !hit;
}

static inline uint32_t turn_after(const struct wont *it, bool prefix)
{
	if (prefix)
		return 0;
	return it->turn < 3 ? it->turn + 1 : 3;
}

/* An open comes upon a state, at the tick of that open or later. */
static inline void wont_touch(struct wont *it)
{
	if (it->tick < wonts.tick) {
		wont_count_reused(it, true);
		it->reused = true;
	}
	*it = (struct wont){.tick = wonts.tick, .turn = wonts.turn, .reused = it->reused};
}

static inline struct gone *gone_of(const struct text *t)
{
	for (uint32_t i = 0; i < GHOSTS; i++) {
		if (wonts.gone[i].is && equal(&wonts.gone[i].text, t))
			return &wonts.gone[i];
	}
	return NULL;
}

static inline struct wont wont_begin(const struct text *t)
{
	struct gone *gone = gone_of(t);
	struct wont new = {.tick = wonts.tick, .turn = wonts.turn, .reused = gone};

	if (gone && gone->wont.tick < wonts.tick)
		wont_count_reused(&gone->wont, false);
	if (gone)
		gone->is = false;
	return new;
}

static inline void wont_left(const struct text *t, const struct wont *it, bool prefix)
{
	uint32_t at = 0;

	if (!wonts.on)
		return;
	while (wonts.gone[at].is)
		assert_true(++at < GHOSTS);
	wonts.gone[at] = (struct gone){.is = true, .prefix = prefix, .text = *t, .wont = *it};
	wonts.evictions++;
}

/* An open of a prompt that has found a state of so many tokens; NULL: none. */
static inline void wonts_tell(const struct text *t, const struct wont *found, bool prefix,
			      uint32_t tokens)
{
	struct gone *best = NULL;

	wonts.turn = found ? turn_after(found, prefix) : 0;
	for (uint32_t i = 0; i < GHOSTS; i++) {
		struct gone *it = &wonts.gone[i];

		if (it->is && it->text.tokens > tokens && begins_with(t, &it->text) &&
		    (!best || it->text.tokens > best->text.tokens))
			best = it;
	}
	if (!best)
		return;
	wonts.turn = turn_after(&best->wont, best->prefix);
	wont_count_reused(&best->wont, false);
	best->is = best->prefix;
	best->wont = (struct wont){.tick = wonts.tick, .turn = wonts.turn, .reused = true};
}

static inline void wonts_compare(const struct images *s)
{
	const struct habits *h = s->habits;
	uint64_t hits = 0, misses = 0, evictions = 0;

	assert_int_equal(!!h, wonts.on);
	if (!h)
		return;
	assert_int_equal(h->tick, wonts.tick);
	assert_memory_equal(h->reuse.waiting, wonts.table.waiting, sizeof(h->reuse.waiting));
	assert_memory_equal(h->reuse.reused, wonts.table.reused, sizeof(h->reuse.reused));
	assert_memory_equal(h->reuse.index, wonts.table.index, sizeof(h->reuse.index));
	for (uint32_t i = 0; i < REUSE_CLASSES; i++) {
		hits += h->counts.hits[i];
		misses += h->counts.misses[i];
		evictions += h->counts.evictions[i];
	}
	assert_int_equal(hits, wonts.hits);
	assert_int_equal(misses, wonts.misses);
	assert_int_equal(evictions, wonts.evictions);
}

#endif
