/* SPDX-License-Identifier: Apache-2.0 */
/* key: see key.h. Pure functions. */
#include "daemon/state/key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

static struct key cut(const struct key_maker *m, XXH128_hash_t h)
{
	struct key k = {.low = h.low64, .high = h.high64};

	if (m->kept_bits < 64) {
		k.low &= ~0ull << (64 - m->kept_bits);
		k.high = 0;
	}
	return k;
}

struct key key_salt(const struct key_maker *m, const char *salt, size_t bytes)
{
	XXH128_hash_t h = XXH3_128bits_withSecret(salt, bytes, m->secret, KEY_SECRET_BYTES);

	return (struct key){.low = h.low64, .high = h.high64};
}

struct key key_root(const struct key_maker *m, uint32_t name_space, const uint8_t stamp[16],
		    uint64_t epoch, const uint8_t variant[KEY_VARIANT_BYTES])
{
	struct {
		uint64_t kind, name_space, epoch;
		uint8_t stamp[16], variant[KEY_VARIANT_BYTES];
		struct key salt; /* last: without salts it is left out */
	} in = {.kind = 1, .name_space = name_space, .epoch = epoch};

	if (m->salts)
		in.salt = m->salts[name_space];

	memcpy(in.stamp, stamp, sizeof(in.stamp));
	memcpy(in.variant, variant, sizeof(in.variant));
	return cut(m, XXH3_128bits_withSecret(&in, sizeof(in) - (m->salts ? 0 : sizeof(in.salt)),
					      m->secret, KEY_SECRET_BYTES));
}

struct key key_page(const struct key_maker *m, struct key parent, uint32_t start,
		    const uint32_t *tokens, uint32_t n_tokens, const struct key_image *images,
		    uint32_t n_images)
{
	XXH128_hash_t t = XXH3_128bits_withSecret(tokens, n_tokens * sizeof(*tokens), m->secret,
						  KEY_SECRET_BYTES);
	struct {
		uint64_t low, high, position, tokens_low, tokens_high, images_low, images_high;
	} in = {.low = parent.low,
		.high = parent.high,
		.position = (uint64_t)start << 32 | n_tokens,
		.tokens_low = t.low64,
		.tokens_high = t.high64};

	if (n_images) {
		XXH128_hash_t i = XXH3_128bits_withSecret(images, n_images * sizeof(*images),
							  m->secret, KEY_SECRET_BYTES);

		in.images_low = i.low64;
		in.images_high = i.high64;
	}
	return cut(m, XXH3_128bits_withSecret(&in, sizeof(in), m->secret, KEY_SECRET_BYTES));
}
