/* SPDX-License-Identifier: Apache-2.0 */
/* habits: see habits.h. Core thread; nothing here blocks. */
#include "daemon/state/habits.h"

#include <errno.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/image.h"

#define GHOSTS_LEAST  4096u
#define GHOSTS_A_SLOT 4u
#define LAST_TURN     (REUSE_TURNS - 1)

/* ---- memory ---- */

static uint64_t ghosts_bytes(uint64_t n)
{
	return n * sizeof(struct ghost);
}

static uint64_t lengths_bytes(uint64_t n)
{
	return n * sizeof(uint64_t);
}

uint64_t habits_bytes_for(uint64_t ghosts, uint32_t name_spaces)
{
	return reserve_bytes(sizeof(struct habits)) + reserve_bytes(ghosts_bytes(ghosts)) +
	       reserve_bytes(lengths_bytes(ghosts)) + 2 * keyset_bytes_for(ghosts) +
	       name_spaces * habit_orders_bytes();
}

uint32_t habits_ghosts_for(uint64_t slots, uint64_t in_ram)
{
	uint64_t n = GHOSTS_LEAST + GHOSTS_A_SLOT * slots + in_ram;

	return n < KEYSET_MAX ? (uint32_t)n : KEYSET_MAX;
}

int habits_new(uint32_t ghosts, struct habits **out)
{
	struct habits *h = reserve_take(sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->oldest = KEYSET_NONE;
	h->newest = KEYSET_NONE;
	h->refresh_at = REUSE_REFRESH + 1;
	for (uint32_t b = 0; b < REUSE_BUCKETS; b++)
		list_init(&h->ages[b]);
	reuse_init(&h->reuse);
	h->ghost = reserve_take(ghosts_bytes(ghosts));
	h->lengths = reserve_take(lengths_bytes(ghosts));
	if (!h->ghost || !h->lengths || keyset_init(&h->ghosts, ghosts) ||
	    keyset_init(&h->heads, ghosts)) {
		h->ghosts.capacity = ghosts;
		habits_free(&h);
		return -ENOMEM;
	}
	*out = h;
	return 0;
}

void habits_free(struct habits **habits)
{
	struct habits *h = *habits;

	*habits = NULL;
	if (!h)
		return;
	for (uint32_t ns = 0; ns < RETAIN_NAMESPACES; ns++)
		habit_orders_free(h->orders[ns]);
	reserve_give(h->ghost, ghosts_bytes(h->ghosts.capacity));
	reserve_give(h->lengths, lengths_bytes(h->ghosts.capacity));
	keyset_deinit(&h->heads);
	keyset_deinit(&h->ghosts);
	reserve_give(h, sizeof(*h));
}

/* ---- cells ---- */

static bool waits(const struct habit *habit)
{
	return !list_is_empty(&habit->in_age);
}

static void wait_in(struct habits *h, struct habit *habit)
{
	h->reuse.waiting[habit_cell(habit)]++;
	list_append(&h->ages[habit->bucket], &habit->in_age);
}

static void wait_no_more(struct habits *h, struct habit *habit)
{
	must(h->reuse.waiting[habit_cell(habit)] > 0);
	h->reuse.waiting[habit_cell(habit)]--;
	list_remove(&habit->in_age);
}

/* From now on it is as young as can be. */
static void begin_anew(struct habits *h, struct habit *habit, uint32_t turn, enum retain_part part)
{
	habit->tick = h->tick;
	habit->bucket = 0;
	habit->class = (uint8_t)(turn * REUSE_PARTS + part);
	wait_in(h, habit);
}

static void grow_older(struct images *s, struct habit *habit)
{
	struct habits *h = s->habits;

	wait_no_more(h, habit);
	if (habit->is_ghost) {
		habit->bucket++;
		wait_in(h, habit);
	} else {
		uint32_t image = (uint32_t)(list_entry(habit, struct image, habit) - s->image);
		struct image_places was = image_step_out(s, image);

		habit->bucket++;
		wait_in(h, habit);
		image_step_in(s, image, was);
	}
}

void habits_open(struct images *s, uint64_t tick)
{
	struct habits *h = s->habits;

	if (!h)
		return;
	must(tick >= h->tick);
	h->tick = tick;
	if (tick >= h->refresh_at) {
		reuse_refresh(&h->reuse);
		h->refresh_at = tick + REUSE_REFRESH;
	}
	for (uint32_t b = 0; b + 1 < REUSE_BUCKETS; b++) {
		struct list *first;

		while ((first = list_first(&h->ages[b])) != NULL) {
			struct habit *oldest = list_entry(first, struct habit, in_age);

			if (tick - oldest->tick < reuse_edge(b + 1))
				break;
			grow_older(s, oldest);
		}
	}
}

/* ---- ghosts ---- */

static struct ghost *ghost_of(const struct habits *h, struct key key)
{
	uint32_t at = keyset_find(&h->ghosts, key);

	return at == KEYSET_NONE ? NULL : &h->ghost[at];
}

static void unlink_ghost(struct habits *h, uint32_t at)
{
	struct keyset_entry *e = h->ghosts.entries;

	if (e[at].older != KEYSET_NONE)
		e[e[at].older].newer = e[at].newer;
	else
		h->oldest = e[at].newer;
	if (e[at].newer != KEYSET_NONE)
		e[e[at].newer].older = e[at].older;
	else
		h->newest = e[at].older;
}

static void link_ghost(struct habits *h, uint32_t at)
{
	struct keyset_entry *e = h->ghosts.entries;

	e[at].newer = KEYSET_NONE;
	e[at].older = h->newest;
	if (h->newest != KEYSET_NONE)
		e[h->newest].newer = at;
	else
		h->oldest = at;
	h->newest = at;
}

/* Ghosts in the middle of a page are found from the one before. */
static uint32_t add_head(struct habits *h, struct key above, uint32_t length)
{
	uint32_t head = keyset_find(&h->heads, above);

	if (head == KEYSET_NONE) {
		head = keyset_add(&h->heads, above);
		h->lengths[head] = 0;
	}
	h->heads.entries[head].owner++;
	h->lengths[head] |= 1ull << (length - 1);
	return head;
}

static void remove_ghost(struct habits *h, uint32_t at)
{
	uint32_t head = h->ghosts.entries[at].owner;

	wait_no_more(h, &h->ghost[at].habit);
	unlink_ghost(h, at);
	if (h->ghost[at].length && --h->heads.entries[head].owner == 0)
		keyset_remove(&h->heads, head);
	keyset_remove(&h->ghosts, at);
}

static void count_forgotten(struct habits *h, const struct habit *habit)
{
	if (protection(ghosts_are_forgotten))
		h->reuse.forgotten[habit_cell(habit)] += 1;
}

void habits_left(struct images *s, uint32_t image, struct key key, struct key above,
		 uint32_t length)
{
	struct habits *h = s->habits;
	struct image *it = &s->image[image];
	struct ghost *ghost;
	uint32_t at;

	if (!h || !waits(&it->habit))
		return;
	h->counts.evictions[it->habit.class]++;
	if (h->ghosts.used == h->ghosts.capacity) {
		count_forgotten(h, &h->ghost[h->oldest].habit);
		remove_ghost(h, h->oldest);
	}
	at = keyset_add(&h->ghosts, key);
	if (at == KEYSET_NONE) {
		count_forgotten(h, &it->habit); /* equal keys: one of them is known */
		habits_drop(s, image);
		return;
	}
	ghost = &h->ghost[at];
	*ghost = (struct ghost){.habit = it->habit, .kind = it->kind, .length = (uint8_t)length};
	ghost->habit.is_ghost = true;
	list_init(&ghost->habit.in_age);
	/* In its place among those of its age. */
	list_append(&it->habit.in_age, &ghost->habit.in_age);
	list_remove(&it->habit.in_age);
	h->ghosts.entries[at].owner = length ? add_head(h, above, length) : KEYSET_NONE;
	link_ghost(h, at);
}

void habits_drop(struct images *s, uint32_t image)
{
	if (s->habits && waits(&s->image[image].habit))
		wait_no_more(s->habits, &s->image[image].habit);
}

uint64_t habits_lengths(const struct habits *h, struct key above)
{
	uint32_t head = keyset_find(&h->heads, above);

	return head == KEYSET_NONE ? 0 : h->lengths[head];
}

bool habits_is_ghost(const struct habits *h, struct key key)
{
	return ghost_of(h, key) != NULL;
}

/* ---- touching ---- */

static uint32_t turn_after(const struct habit *habit, uint32_t kind)
{
	uint32_t turn = habit->class / REUSE_PARTS;

	if (kind != IMAGE_CHECKPOINT)
		return 0;
	return turn < LAST_TURN ? turn + 1 : LAST_TURN;
}

uint32_t habits_turn_after(const struct images *s, uint32_t image)
{
	return turn_after(&s->image[image].habit, s->image[image].kind);
}

uint32_t habits_turn_after_ghost(const struct habits *h, struct key key)
{
	const struct ghost *ghost = ghost_of(h, key);

	return ghost ? turn_after(&ghost->habit, ghost->kind) : 0;
}

static void count_reused(struct habits *h, const struct habit *habit, bool is_hit)
{
	h->reuse.reused[habit_cell(habit)] += 1;
	if (is_hit)
		h->counts.hits[habit->class]++;
	else
		h->counts.misses[habit->class]++;
}

void habits_missed(struct images *s, struct key key, uint32_t turn)
{
	struct habits *h = s->habits;
	struct ghost *ghost = ghost_of(h, key);

	if (!ghost)
		return;
	count_reused(h, &ghost->habit, false);
	/* What goes on from a checkpoint replaces it; a prefix waits for others. */
	if (ghost->kind == IMAGE_CHECKPOINT) {
		remove_ghost(h, (uint32_t)(ghost - h->ghost));
		return;
	}
	wait_no_more(h, &ghost->habit);
	begin_anew(h, &ghost->habit, turn, RETAIN_REUSED);
}

void habits_begin(struct images *s, uint32_t image, struct key key, uint32_t turn, uint64_t since)
{
	struct habits *h = s->habits;
	struct ghost *ghost = h ? ghost_of(h, key) : NULL;

	if (!h)
		return;
	must(!waits(&s->image[image].habit));
	if (ghost) {
		if (ghost->habit.tick < since)
			count_reused(h, &ghost->habit, false);
		remove_ghost(h, (uint32_t)(ghost - h->ghost));
	}
	begin_anew(h, &s->image[image].habit, turn, ghost ? RETAIN_REUSED : RETAIN_NEW);
}

void habits_touch(struct images *s, uint32_t image, uint32_t turn, uint64_t since)
{
	struct habits *h = s->habits;
	struct habit *habit = &s->image[image].habit;
	enum retain_part part = RETAIN_REUSED;
	struct image_places was;

	if (!h || !waits(habit))
		return;
	was = image_step_out(s, image);
	if (habit->tick < since)
		count_reused(h, habit, true);
	else
		part = habit->class % REUSE_PARTS;
	wait_no_more(h, habit);
	begin_anew(h, habit, turn, part);
	image_step_in(s, image, was);
}

/* ---- for people, and checks ---- */

uint64_t habits_ghost_bytes(const struct habits *h)
{
	return keyset_bytes(&h->ghosts) + ghosts_bytes(h->ghosts.fresh) + keyset_bytes(&h->heads) +
	       lengths_bytes(h->heads.fresh);
}

static const char *check_ages(const struct habits *h, uint64_t *n)
{
	uint64_t waiting[REUSE_CELLS] = {0}, last = UINT64_MAX;

	for (uint32_t b = 0; b < REUSE_BUCKETS; b++) {
		for (const struct list *at = h->ages[b].previous; at != &h->ages[b];
		     at = at->previous) {
			const struct habit *habit = list_entry(at, struct habit, in_age);

			if (habit->bucket != b || reuse_bucket(h->tick - habit->tick) != b)
				return "a state is counted at another age";
			if (habit->tick > last)
				return "the states of an age are not in order";
			last = habit->tick;
			waiting[habit_cell(habit)]++;
			++*n;
		}
	}
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		if (waiting[i] != h->reuse.waiting[i])
			return "the states that wait in a cell are miscounted";
	}
	return NULL;
}

static const char *check_ghosts(const struct habits *h)
{
	const struct keyset_entry *e = h->ghosts.entries;
	uint64_t n = 0, in_heads = 0, with_heads = 0;

	for (uint32_t at = h->oldest; at != KEYSET_NONE; at = e[at].newer, n++) {
		if (n == h->ghosts.used || keyset_find(&h->ghosts, e[at].key) != at ||
		    !h->ghost[at].habit.is_ghost)
			return "a ghost of a state is not found by its key";
		if (!h->ghost[at].length)
			continue;
		with_heads++;
		if (!(h->lengths[e[at].owner] >> (h->ghost[at].length - 1) & 1))
			return "a ghost of a state is not found from the page before";
	}
	for (uint32_t i = 0; i < h->heads.fresh; i++) {
		if (keyset_find(&h->heads, h->heads.entries[i].key) == i)
			in_heads += h->heads.entries[i].owner;
	}
	if (n != h->ghosts.used || in_heads != with_heads)
		return "the ghosts of states are miscounted";
	return NULL;
}

const char *habits_check(const struct images *s)
{
	const struct habits *h = s->habits;
	uint64_t n = 0, states = 0;
	const char *wrong;

	if (!h)
		return NULL;
	wrong = check_ages(h, &n);
	if (!wrong)
		wrong = check_ghosts(h);
	for (uint32_t i = 0; i < s->n_images && !wrong; i++) {
		const struct image *it = &s->image[i];
		bool is = it->state == IMAGE_FILLING || it->state == IMAGE_VALID;

		if (is != (it->state != IMAGE_FREE && waits(&it->habit)))
			wrong = "a state waits for nothing, or something that is none waits";
		states += is;
	}
	return wrong || n == states + h->ghosts.used ? wrong : "more wait than there are";
}
