/* SPDX-License-Identifier: Apache-2.0 */
/* shadow: see shadow.h. Core thread; nothing here blocks. */
#include "daemon/state/shadow.h"

#include "daemon/base/panic.h"

int shadow_init(struct shadow *s, uint32_t pages)
{
	must(pages > 0 && pages < KEYSET_MAX);
	*s = (struct shadow){.pages = pages, .oldest = KEYSET_NONE, .newest = KEYSET_NONE};
	/* One more, so that who comes is in before who goes is out. */
	return keyset_init(&s->keys, pages + 1);
}

uint64_t shadow_bytes_for(uint64_t pages)
{
	return keyset_bytes_for(pages + 1);
}

void shadow_deinit(struct shadow *s)
{
	keyset_deinit(&s->keys);
	*s = (struct shadow){0};
}

static void unlink_entry(struct shadow *s, uint32_t at)
{
	struct keyset_entry *e = s->keys.entries;

	if (e[at].older != KEYSET_NONE)
		e[e[at].older].newer = e[at].newer;
	else
		s->oldest = e[at].newer;
	if (e[at].newer != KEYSET_NONE)
		e[e[at].newer].older = e[at].older;
	else
		s->newest = e[at].older;
}

/* Right behind the page above it; in front, if that is not there. */
static void link_entry(struct shadow *s, uint32_t at, struct key above)
{
	struct keyset_entry *e = s->keys.entries;
	uint32_t front = keyset_find(&s->keys, above);

	if (front == at)
		front = KEYSET_NONE; /* equal keys of both */
	e[at].newer = front;
	e[at].older = front == KEYSET_NONE ? s->newest : e[front].older;
	if (e[at].older != KEYSET_NONE)
		e[e[at].older].newer = at;
	else
		s->oldest = at;
	if (front != KEYSET_NONE)
		e[front].older = at;
	else
		s->newest = at;
}

bool shadow_meet(struct shadow *s, struct key key, struct key above)
{
	uint32_t at = keyset_find(&s->keys, key);

	if (at == KEYSET_NONE)
		return false;
	s->hits++;
	unlink_entry(s, at);
	link_entry(s, at, above);
	return true;
}

void shadow_put(struct shadow *s, struct key key, struct key above)
{
	uint32_t at = keyset_add(&s->keys, key);

	if (at == KEYSET_NONE) {
		at = keyset_find(&s->keys, key);
		unlink_entry(s, at);
	}
	link_entry(s, at, above);
	if (s->keys.used <= s->pages)
		return;
	at = s->oldest;
	unlink_entry(s, at);
	keyset_remove(&s->keys, at);
}

const char *shadow_check(const struct shadow *s)
{
	const struct keyset_entry *e = s->keys.entries;
	uint32_t n = 0;

	if (!s->pages)
		return NULL;
	for (uint32_t at = s->oldest; at != KEYSET_NONE && n <= s->pages; at = e[at].newer) {
		if (keyset_find(&s->keys, e[at].key) != at)
			return "a page of the shadow is not found by its key";
		if (e[at].newer == KEYSET_NONE && s->newest != at)
			return "the shadow's newest page is another";
		n++;
	}
	return n == s->keys.used && n <= s->pages ? NULL : "the shadow's order is broken";
}
