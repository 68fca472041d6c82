/* SPDX-License-Identifier: Apache-2.0 */
/* plan_keys: see plan_keys.h. Any thread; nothing blocks. */
#include "daemon/state/plan_keys.h"

#include <stdio.h>

/* ---- one key as far as it goes: false if it says so already ---- */

static bool raise_bytes(struct plan_wish *w)
{
	if (w->pool_bytes == PLAN_NULL || w->pool_bytes >= w->available_bytes)
		return false;
	w->pool_bytes = w->available_bytes;
	return true;
}

static bool lower_bytes(struct plan_wish *w)
{
	if (w->pool_bytes == PLAN_NULL || w->pool_bytes <= w->available_bytes)
		return false;
	w->pool_bytes = w->available_bytes;
	return true;
}

static bool free_bytes(struct plan_wish *w)
{
	if (w->pool_bytes == PLAN_NULL || w->pool_bytes <= w->available_bytes)
		return false;
	w->pool_bytes = PLAN_NULL;
	return true;
}

/* The fewest that could do; 0: none could. */
static uint64_t least_pages(const struct plan_wish *w)
{
	uint64_t pages = w->max_sequence_tokens / w->limits.page_tokens + 2;

	if (w->max_sequence_tokens % w->limits.page_tokens == 0 && w->max_sequence_tokens)
		pages--;
	if (!w->prefix_caching)
		pages--;
	if (__builtin_add_overflow(pages, w->retained_slots, &pages) || pages > POOL_PAGES_MAX)
		return 0;
	return pages;
}

static bool raise_pages(struct plan_wish *w)
{
	uint64_t least = least_pages(w);

	if (!w->pool_pages_limit || w->pool_pages_limit >= least)
		return false;
	w->pool_pages_limit = least;
	return true;
}

static bool lower_pages(struct plan_wish *w)
{
	uint64_t least = least_pages(w);

	if (!least || w->pool_pages_limit <= least)
		return false;
	w->pool_pages_limit = least;
	return true;
}

static bool free_pages(struct plan_wish *w)
{
	if (!w->pool_pages_limit || w->pool_bytes != PLAN_NULL)
		return false;
	w->pool_pages_limit = 0;
	return true;
}

static bool lower_headroom(struct plan_wish *w)
{
	if (!w->headroom_bytes)
		return false;
	w->headroom_bytes = 0;
	return true;
}

static bool lower_lanes(struct plan_wish *w)
{
	if (w->lanes <= 1)
		return false;
	w->workspace_bytes /= w->lanes;
	w->lanes = 1;
	if (w->limits.lanes > 1)
		w->limits.lanes = 1;
	return true;
}

static bool lower_slots(struct plan_wish *w)
{
	if (!w->retained_slots && !w->limits.retained_slots)
		return false;
	w->retained_slots = 0;
	w->limits.retained_slots = 0;
	return true;
}

static bool forget_order(struct plan_wish *w)
{
	if (!w->prefix_caching || w->limits.order == RETAIN_LRU)
		return false;
	w->limits.order = RETAIN_LRU;
	return true;
}

static bool forget_shadow(struct plan_wish *w)
{
	if (!w->prefix_caching || !w->limits.shadow_lru)
		return false;
	w->limits.shadow_lru = false;
	return true;
}

/* What is in KV-RAM is known by the index, too. */
static bool forget_ram(struct plan_wish *w)
{
	if (!w->limits.ram_pages && !w->limits.ram_images)
		return false;
	w->limits.ram_pages = 0;
	w->limits.ram_images = 0;
	return true;
}

static bool raise_prefix(struct plan_wish *w)
{
	if (!w->prefix_caching || w->max_prefix_pages)
		return false;
	w->max_prefix_pages = 1;
	return true;
}

static bool lower_prefix(struct plan_wish *w)
{
	if (!w->prefix_caching || w->max_prefix_pages <= 1)
		return false;
	w->max_prefix_pages = 1;
	return true;
}

static bool forget_prefix(struct plan_wish *w)
{
	if (!w->prefix_caching)
		return false;
	w->prefix_caching = false;
	(void)forget_ram(w);
	(void)lower_slots(w);
	return true;
}

static bool shorten_sequence(struct plan_wish *w)
{
	if (w->max_sequence_tokens <= 1)
		return false;
	w->max_sequence_tokens = 1;
	return true;
}

/* ---- all of them ---- */

struct remedy {
	const char *text;
	bool (*change)(struct plan_wish *w);
};

static const struct remedy keys[] = {
    {"more pool_bytes", raise_bytes},
    {"a smaller pool_bytes", lower_bytes},
    {"pool_bytes null for what is free", free_bytes},
    {"more pool_pages", raise_pages},
    {"fewer pool_pages", lower_pages},
    {"pool_pages null for what is free", free_pages},
    {"less headroom_bytes", lower_headroom},
    {"fewer lanes", lower_lanes},
    {"fewer retained_slots", lower_slots},
    {"retained_order lru", forget_order},
    {"shadow_lru false", forget_shadow},
    {"a smaller kv_ram_bytes", forget_ram},
    {"a max_prefix_cache_pages above 0", raise_prefix},
    {"a smaller max_prefix_cache_pages", lower_prefix},
    {"enable_prefix_caching false", forget_prefix},
    {"a smaller max_sequence_length", shorten_sequence},
};

#define KEYS (sizeof(keys) / sizeof(*keys))

static bool pair_helps(const struct plan_wish *wish, plan_judge *fits, size_t a, size_t b)
{
	struct plan_wish other = *wish;

	return keys[a].change(&other) && keys[b].change(&other) && fits(&other);
}

static void say_pair(const struct plan_wish *wish, plan_judge *fits, char *out, size_t bytes)
{
	for (size_t a = 0; a < KEYS; a++) {
		for (size_t b = a + 1; b < KEYS; b++) {
			if (!pair_helps(wish, fits, a, b))
				continue;
			snprintf(out, bytes, "; %s together with %s would change it", keys[a].text,
				 keys[b].text);
			return;
		}
	}
	snprintf(out, bytes, "; no key of the pool would change it, nor would two");
}

void plan_say_keys(const struct plan_wish *wish, plan_judge *fits, char *out, size_t bytes)
{
	const char *helps[KEYS];
	size_t n = 0, used = 0;

	for (size_t i = 0; i < KEYS; i++) {
		struct plan_wish other = *wish;

		if (keys[i].change(&other) && fits(&other))
			helps[n++] = keys[i].text;
	}
	if (!n) {
		say_pair(wish, fits, out, bytes);
		return;
	}
	for (size_t i = 0; i < n && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%s",
					 i == 0       ? "; "
					 : i + 1 == n ? " or "
						      : ", ",
					 helps[i]);
	if (used < bytes)
		snprintf(out + used, bytes - used, " would change it");
}
