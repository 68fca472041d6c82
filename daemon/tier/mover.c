/* SPDX-License-Identifier: Apache-2.0 */
/* mover: see mover.h. Core thread; nothing here blocks. */
#include "daemon/tier/mover.h"

#include "daemon/base/panic.h"
#include "daemon/base/testing.h"

void mover_init(struct mover *m, struct pages *pages, struct device *device,
		struct device_memory *memory, void (*cleaned)(void *context, int result),
		void *context)
{
	uint64_t batch = MOVER_ZERO_BYTES / memory->geometry->page_stride;

	*m = (struct mover){.pages = pages,
			    .device = device,
			    .memory = memory,
			    .cleaned = cleaned,
			    .context = context};
	m->batch = batch == 0 ? 1 : batch > MOVER_ZERO_PAGES ? MOVER_ZERO_PAGES : (uint32_t)batch;
	for (int i = 0; i < MOVER_ZERO_JOBS; i++)
		m->zero[i].mover = m;
}

static void zero_done(struct job *job)
{
	struct mover_zero *z = (struct mover_zero *)(void *)job;
	struct mover *m = z->mover;
	int result = job->result;

	for (uint32_t i = 0; i < z->job.n; i++)
		pages_clean(m->pages, z->pages[i], result == 0);
	if (result == 0)
		m->zeroed += z->job.n;
	z->busy = false;
	must(m->in_flight > 0);
	m->in_flight--;
	m->cleaned(m->context, result);
}

void mover_kick(struct mover *m)
{
	for (int i = 0; i < MOVER_ZERO_JOBS && m->pages->count[PAGE_DIRTY]; i++) {
		struct mover_zero *z = &m->zero[i];
		uint32_t n = 0;

		if (z->busy)
			continue;
		while (n < m->batch && pages_take_dirty(m->pages, &z->pages[n]) == 0)
			n++;
		z->job = (struct device_job){.job.done = zero_done,
					     .op = DEVICE_ZERO,
					     .memory = m->memory,
					     .pages = z->pages,
					     .n = n,
					     .owner = m};
		z->busy = true;
		m->in_flight++;
		if (!protection(fresh_pages_are_zeroed)) {
			z->job.n = 0;
			for (uint32_t k = 0; k < n; k++)
				pages_clean(m->pages, z->pages[k], true);
		}
		m->device->submit(m->device, &z->job);
	}
}

static void copy_done(struct job *job)
{
	struct mover_copy *c = (struct mover_copy *)(void *)job;
	struct mover *m = c->mover;

	pages_unpin(m->pages, c->copy.from);
	pages_unpin(m->pages, c->copy.to);
	m->copied += job->result == 0;
	must(m->in_flight > 0);
	m->in_flight--;
	c->done(c, job->result);
}

void mover_copy(struct mover *m, struct mover_copy *c)
{
	c->mover = m;
	c->job = (struct device_job){.job.done = copy_done,
				     .op = DEVICE_COPY,
				     .memory = m->memory,
				     .copies = &c->copy,
				     .n = 1,
				     .copy_tokens = c->tokens,
				     .owner = c};
	pages_pin(m->pages, c->copy.from);
	pages_pin(m->pages, c->copy.to);
	m->in_flight++;
	m->device->submit(m->device, &c->job);
}
