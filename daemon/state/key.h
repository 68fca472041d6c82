/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_STATE_KEY_H
#define KVHOST_STATE_KEY_H

/*
 * key: the 128-bit chain hash by which pages are found. The hash finds; it never decides.
 *
 * XXH3-128, keyed with a secret of this installation, so that a tenant cannot make collisions:
 *	root key = H(namespace, its salt, stamp, weights epoch, variant)
 *	page key = H(parent's key, start position, length, H(tokens), H(images that begin there))
 * The tokens' own hash does not depend on the parent, so the pages of a prompt hash in parallel in
 * the processor; only the short outer hash is a chain. Pure functions.
 */

#include <stddef.h>
#include <stdint.h>

#define KEY_SECRET_BYTES  192 /* XXH3 wants 136 at least */
#define KEY_VARIANT_BYTES 32

struct key {
	uint64_t low;
	uint64_t high;
};

/* An image that begins in a page. */
struct key_image {
	uint32_t start; /* position in the sequence */
	uint32_t length;
	uint8_t digest[32];
};

struct key_maker {
	uint8_t secret[KEY_SECRET_BYTES];
	uint32_t kept_bits;      /* 128; a test keeps few, so that everything collides */
	const struct key *salts; /* by namespace; NULL: none has one */
};

/* What a namespace's salt puts into its root keys. */
struct key key_salt(const struct key_maker *m, const char *salt, size_t bytes);

struct key key_root(const struct key_maker *m, uint32_t name_space, const uint8_t stamp[16],
		    uint64_t epoch, const uint8_t variant[KEY_VARIANT_BYTES]);
struct key key_page(const struct key_maker *m, struct key parent, uint32_t start,
		    const uint32_t *tokens, uint32_t n_tokens, const struct key_image *images,
		    uint32_t n_images);

#endif
