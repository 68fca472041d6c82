/* SPDX-License-Identifier: Apache-2.0 */
/* page: see page.h. Core thread; nothing here blocks. */
#include "daemon/state/page.h"

#include <errno.h>
#include <stddef.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"

#define PINS_MAX ((1u << 22) - 1)

static uint64_t records_bytes(uint64_t capacity)
{
	return capacity * sizeof(struct page);
}

uint64_t pages_bytes_for(uint64_t capacity)
{
	return reserve_bytes(records_bytes(capacity));
}

int pages_init(struct pages *p, uint32_t capacity)
{
	must(capacity > 0 && capacity < PAGE_NONE);

	*p = (struct pages){
	    .capacity = capacity, .first_clean = PAGE_NONE, .first_dirty = PAGE_NONE};
	p->page = reserve_take(records_bytes(capacity));
	if (!p->page)
		return -ENOMEM;
	p->count[PAGE_CLEAN] = capacity;
	return 0;
}

void pages_deinit(struct pages *p)
{
	reserve_give(p->page, records_bytes(p->capacity));
	*p = (struct pages){0};
}

static void count_share(struct pages *p, uint32_t page, enum page_state state, bool more)
{
	struct pages_share *share = &p->shares[p->page[page].name_space];
	uint32_t *count = state == PAGE_PRIVATE ? &share->private : &share->quarantined;

	if (state != PAGE_PRIVATE && state != PAGE_QUARANTINED)
		return;
	must(more || *count > 0);
	*count += more ? 1 : UINT32_MAX;
}

static void move(struct pages *p, uint32_t page, enum page_state from, enum page_state to)
{
	must(page < p->capacity);
	must(p->page[page].state == from);
	must(p->count[from] > 0);

	count_share(p, page, from, false);
	count_share(p, page, to, true);
	p->page[page].state = (uint8_t)to;
	p->count[from]--;
	p->count[to]++;
}

static void push_dirty(struct pages *p, uint32_t page)
{
	p->page[page].next = p->first_dirty;
	p->first_dirty = page;
}

/* The handle dies now; the bytes may still be touched by a job that is in flight. */
static void give_back(struct pages *p, uint32_t page, enum page_state from)
{
	struct page *it = &p->page[page];

	must(it->generation % 2 == 1);
	it->generation++;
	it->references = 0;
	if (it->pins && protection(pinned_pages_drain)) {
		move(p, page, from, PAGE_DRAINING);
		return;
	}
	move(p, page, from, PAGE_DIRTY);
	push_dirty(p, page);
}

int pages_take(struct pages *p, uint32_t *page)
{
	uint32_t at = p->first_clean;

	if (at != PAGE_NONE) {
		p->first_clean = p->page[at].next;
	} else {
		if (p->fresh == p->capacity)
			return PAGE_EMPTY;
		at = p->fresh++;
	}
	must(p->page[at].generation % 2 == 0);
	p->page[at].name_space = 0;
	move(p, at, PAGE_CLEAN, PAGE_PRIVATE);
	p->page[at].generation++;
	p->page[at].references = 1;
	p->page[at].next = 0;
	*page = at;
	return 0;
}

int pages_take_any(struct pages *p, uint32_t *page)
{
	uint32_t at = p->first_dirty;

	if (at == PAGE_NONE)
		return pages_take(p, page);
	p->first_dirty = p->page[at].next;
	must(p->page[at].generation % 2 == 0);
	p->page[at].name_space = 0;
	move(p, at, PAGE_DIRTY, PAGE_PRIVATE);
	p->page[at].generation++;
	p->page[at].references = 1;
	p->page[at].next = 0;
	*page = at;
	return 0;
}

void pages_assign(struct pages *p, uint32_t page, uint16_t name_space)
{
	struct page *it = &p->page[page];

	must(it->state == PAGE_PRIVATE && it->name_space == 0 && name_space < PAGE_NAMESPACES);
	count_share(p, page, PAGE_PRIVATE, false);
	it->name_space = name_space & (PAGE_NAMESPACES - 1);
	count_share(p, page, PAGE_PRIVATE, true);
}

void pages_hold(struct pages *p, uint32_t page)
{
	must(p->page[page].state == PAGE_PRIVATE);
	must(p->page[page].references < UINT32_MAX);
	p->page[page].references++;
}

void pages_drop(struct pages *p, uint32_t page)
{
	struct page *it = &p->page[page];

	must(page < p->capacity);
	if (it->state != PAGE_PRIVATE || it->references == 0) {
		p->refused_references++;
		return;
	}
	if (--it->references == 0)
		give_back(p, page, PAGE_PRIVATE);
}

void pages_lend(struct pages *p, uint32_t page, uint32_t rows)
{
	struct page *it = &p->page[page];

	must(it->state == PAGE_PRIVATE && it->lent < PAGE_LENT && rows < 128);
	it->lent++;
	if (it->keep < rows)
		it->keep = rows & 127;
}

void pages_unlend(struct pages *p, uint32_t page)
{
	must(p->page[page].lent > 0);
	if (--p->page[page].lent == 0)
		p->page[page].keep = 0;
}

void pages_index(struct pages *p, uint32_t page, uint32_t node)
{
	must(p->page[page].references == 1);
	move(p, page, PAGE_PRIVATE, PAGE_INDEXED);
	p->page[page].references = 0;
	p->page[page].next = node;
}

void pages_unindex(struct pages *p, uint32_t page)
{
	give_back(p, page, PAGE_INDEXED);
}

void pages_own(struct pages *p, uint32_t page, uint16_t name_space)
{
	must(p->page[page].references == 0);
	p->page[page].name_space = name_space & (PAGE_NAMESPACES - 1);
	move(p, page, PAGE_INDEXED, PAGE_PRIVATE);
	p->page[page].references = 1;
	p->page[page].next = 0;
}

void pages_quarantine(struct pages *p, uint32_t page)
{
	must(p->page[page].references == 1);
	move(p, page, PAGE_PRIVATE, PAGE_QUARANTINED);
}

void pages_acquit(struct pages *p, uint32_t page)
{
	give_back(p, page, PAGE_QUARANTINED);
}

void pages_pin(struct pages *p, uint32_t page)
{
	must(page < p->capacity);
	must(p->page[page].pins < PINS_MAX);
	p->page[page].pins++;
}

void pages_unpin(struct pages *p, uint32_t page)
{
	struct page *it = &p->page[page];

	must(page < p->capacity && it->pins > 0);
	it->pins--;
	if (it->pins == 0 && it->state == PAGE_DRAINING) {
		move(p, page, PAGE_DRAINING, PAGE_DIRTY);
		push_dirty(p, page);
	}
}

int pages_take_dirty(struct pages *p, uint32_t *page)
{
	uint32_t at = p->first_dirty;

	if (at == PAGE_NONE)
		return PAGE_EMPTY;
	p->first_dirty = p->page[at].next;
	move(p, at, PAGE_DIRTY, PAGE_ZEROING);
	*page = at;
	return 0;
}

void pages_clean(struct pages *p, uint32_t page, bool zeroed)
{
	if (!zeroed) {
		move(p, page, PAGE_ZEROING, PAGE_DIRTY);
		push_dirty(p, page);
		return;
	}
	move(p, page, PAGE_ZEROING, PAGE_CLEAN);
	p->page[page].next = p->first_clean;
	p->first_clean = page;
}

bool pages_is_current(const struct pages *p, uint32_t index, uint32_t generation)
{
	return index < p->capacity && generation % 2 == 1 &&
	       p->page[index].generation == generation;
}

static uint32_t length(const struct pages *p, uint32_t first, enum page_state state)
{
	uint32_t n = 0;

	for (uint32_t at = first; at != PAGE_NONE; at = p->page[at].next) {
		if (at >= p->capacity || p->page[at].state != state || ++n > p->capacity)
			return UINT32_MAX;
	}
	return n;
}

const char *pages_check(const struct pages *p)
{
	uint32_t count[PAGE_STATES] = {0};
	struct pages_share all = {0};

	for (uint32_t i = 0; i < p->capacity; i++) {
		const struct page *it = &p->page[i];
		bool used = it->state == PAGE_PRIVATE || it->state == PAGE_INDEXED ||
			    it->state == PAGE_QUARANTINED;

		if (it->state >= PAGE_STATES)
			return "a page has no state";
		count[it->state]++;
		if (used != (it->generation % 2 == 1))
			return "the generation of a page does not tell whether it is used";
		if (it->state == PAGE_PRIVATE && it->references == 0)
			return "a private page is held by nobody";
		if (it->state == PAGE_DRAINING && it->pins == 0)
			return "a page drains with no job on it";
		if ((it->state == PAGE_CLEAN || it->state == PAGE_DIRTY ||
		     it->state == PAGE_ZEROING) &&
		    it->pins)
			return "a job touches a free page";
	}
	for (int s = 0; s < PAGE_STATES; s++) {
		if (count[s] != p->count[s])
			return "a count of pages by state is wrong";
	}
	for (uint32_t i = 0; i < PAGE_NAMESPACES; i++) {
		all.private += p->shares[i].private;
		all.quarantined += p->shares[i].quarantined;
	}
	if (all.private != count[PAGE_PRIVATE] || all.quarantined != count[PAGE_QUARANTINED])
		return "the pages of all namespaces are not those of the pool";
	if (length(p, p->first_clean, PAGE_CLEAN) !=
	    p->count[PAGE_CLEAN] - (p->capacity - p->fresh))
		return "the list of clean pages is wrong";
	if (length(p, p->first_dirty, PAGE_DIRTY) != p->count[PAGE_DIRTY])
		return "the list of dirty pages is wrong";
	return NULL;
}
