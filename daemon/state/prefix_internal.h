/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_PREFIX_INTERNAL_H
#define KVHOST_STATE_PREFIX_INTERNAL_H

/*
 * prefix_internal: what the files prefix*.c share.
 *
 * The images of pages: a node names its list by index + 1. Lists lie on the heap, of which they
 * take PREFIX_IMAGE_BYTES a node at most, all together.
 */

#include "daemon/state/prefix.h"

uint64_t prefix_images_bytes_for(uint64_t nodes); /* of address space and of the heap */
int prefix_images_init(struct prefix *p);         /* 0 or -ENOMEM */
void prefix_images_deinit(struct prefix *p);

bool prefix_images_equal(const struct prefix *p, const struct node *n,
			 const struct key_image *images, uint32_t n_images);
/* 0 with *out = index + 1, or -ENOMEM. */
int prefix_images_store(struct prefix *p, const struct key_image *images, uint32_t n,
			uint32_t *out);
void prefix_images_forget(struct prefix *p, uint32_t index); /* index + 1; 0: it has none */

/* ---- the table ---- */

static inline uint32_t prefix_tag_of(struct key k)
{
	return (uint32_t)(k.low >> 32);
}

/* The first slot where a page with this tag may be. */
static inline uint64_t prefix_home_of(const struct prefix *p, uint32_t tag)
{
	return tag >> p->tag_shift;
}

/* Is this node that page? It has that key, at least. */
bool prefix_is_page(const struct prefix *p, uint32_t node, struct key key, uint32_t parent,
		    const uint32_t *tokens, uint32_t n_tokens, const struct key_image *images,
		    uint32_t n_images);
uint32_t prefix_find_page(struct prefix *p, struct key key, uint32_t parent, const uint32_t *tokens,
			  uint32_t n_tokens, const struct key_image *images, uint32_t n_images);

#endif
