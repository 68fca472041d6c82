/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_images: the images that begin in the pages of a tree; see prefix.h. Core thread; nothing
 * here blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/panic.h"
#include "daemon/base/reserve.h"
#include "daemon/base/testing.h"
#include "daemon/state/prefix_internal.h"

static uint64_t lists_bytes(uint64_t nodes)
{
	return nodes * sizeof(struct prefix_images);
}

uint64_t prefix_images_bytes_for(uint64_t nodes)
{
	return reserve_bytes(lists_bytes(nodes)) + PREFIX_IMAGE_BYTES * nodes;
}

int prefix_images_init(struct prefix *p)
{
	p->images = reserve_take(lists_bytes(p->capacity));
	return p->images ? 0 : -ENOMEM;
}

void prefix_images_deinit(struct prefix *p)
{
	for (uint32_t i = 0; i < p->n_images; i++)
		free(p->images[i].image);
	reserve_give(p->images, lists_bytes(p->capacity));
}

bool prefix_images_equal(const struct prefix *p, const struct node *n,
			 const struct key_image *images, uint32_t n_images)
{
	const struct prefix_images *have;

	if (!n->images || !n_images)
		return !n->images && !n_images;
	have = &p->images[n->images - 1];
	return have->n == n_images && !memcmp(have->image, images, n_images * sizeof(*images));
}

/* What the heap takes for it at most: an allocator rounds up, to 5/4 at most, or to a small block.
 */
static uint64_t cost_of(uint32_t n)
{
	return n * sizeof(struct key_image) / 4 * 5 + 16;
}

int prefix_images_store(struct prefix *p, const struct key_image *images, uint32_t n, uint32_t *out)
{
	uint32_t at = p->first_free_images;
	struct key_image *copy;

	if (p->images_bytes + cost_of(n) > PREFIX_IMAGE_BYTES * p->capacity &&
	    protection(images_are_bounded))
		return -ENOMEM;
	copy = malloc(n * sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	if (at == UINT32_MAX)
		at = p->n_images++;
	else
		p->first_free_images = p->images[at].next_free;
	must(at < p->capacity);
	memcpy(copy, images, n * sizeof(*copy));
	p->images[at] = (struct prefix_images){.n = n, .image = copy};
	p->images_bytes += cost_of(n);
	*out = at + 1;
	return 0;
}

void prefix_images_forget(struct prefix *p, uint32_t index)
{
	if (!index)
		return;
	p->images_bytes -= cost_of(p->images[index - 1].n);
	free(p->images[index - 1].image);
	p->images[index - 1] = (struct prefix_images){.next_free = p->first_free_images};
	p->first_free_images = index - 1;
}
