/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_STATES_MODEL_H
#define KVHOST_TESTS_STATES_MODEL_H

/* states_model: the states of a hybrid pool as a plain list, each with the tiers that it lives in,
 * and what they need there. */

#include "tests/unit/states_habits.h"

#define PAGES  40u
#define SLOTS  3u
#define UNITS  56u
#define IMAGE  4u /* units */
#define STATES (SLOTS + UNITS / IMAGE + 1)

struct state {
	bool is;
	struct image_name name;
	struct text text;
	bool prefix, interactive, is_protected, tried;
	bool device, ram, slot, place;
	uint64_t touched, touched_ns;
	struct wont wont;
};

static struct model {
	struct state states[STATES];
	uint64_t clock, now_ns;
	uint32_t floor_tokens;
	struct text live; /* the pages that a sequence uses */
	uint32_t private; /* and others that it has */
	uint64_t refused;
} model;

static inline struct set set_of(bool device, const struct model *m)
{
	struct set s = {.n = 0};

	for (uint32_t i = 0; i < STATES; i++) {
		const struct state *it = &m->states[i];

		if (it->is && (device ? it->device : it->ram))
			add(&s, &it->text);
	}
	if (device)
		add(&s, &m->live);
	return s;
}

static inline uint32_t units_of(const struct model *m)
{
	uint32_t units = set_of(false, m).n;

	for (uint32_t i = 0; i < STATES; i++)
		units += m->states[i].is && m->states[i].place ? IMAGE : 0;
	return units;
}

static inline uint32_t slots_used(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < STATES; i++)
		n += model.states[i].is && model.states[i].slot;
	return n;
}

static inline uint32_t free_pages(void)
{
	return PAGES - set_of(true, &model).n - model.private;
}

/* What waits, at its age now. */
static inline void count_waiting(void)
{
	memset(wonts.table.waiting, 0, sizeof(wonts.table.waiting));
	wonts_count_gone();
	for (uint32_t i = 0; i < STATES; i++) {
		if (model.states[i].is)
			wonts.table.waiting[wont_cell(&model.states[i].wont)]++;
	}
}

#endif
