/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: prompts of a small family, and the stamps that their rows carry. Pure functions of a text.
 *
 * Prompts of a family share a beginning and part at few places, so that hits, forks, equal tokens
 * under different parents, and equal tokens with other images are frequent.
 */
#include "tests/sim/sim.h"

struct image_place {
	uint32_t start, length;
};

static const struct image_place places[3][SIM_IMAGES] = {
    {{24, 30}, {70, 20}},
    {{5, 8}, {36, 45}},
    {{SIM_TOKENS, 1}, {SIM_TOKENS, 1}}, /* a family without images */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 32;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 30;
}

void text_branch_from(struct sim *w, struct sim_text *t, uint32_t position)
{
	for (uint32_t i = (position + SIM_SEGMENT - 1) / SIM_SEGMENT; i < SIM_SEGMENTS; i++)
		t->branch[i] = chance(w, 5) ? (uint8_t)(1 + below(w, 2)) : 0;
}

void text_draw(struct sim *w, struct sim_text *t)
{
	*t = (struct sim_text){.family = (uint8_t)(chance(w, 70) ? 0 : below(w, 3)),
			       .variant = chance(w, 15) ? (uint8_t)(1 + below(w, 2)) : 0};
	for (uint32_t i = 0; i < SIM_IMAGES; i++)
		t->image[i] = chance(w, 90) ? (uint8_t)(1 + chance(w, 10)) : 0;
	text_branch_from(w, t, 0);
}

uint32_t text_token(const struct sim_text *t, uint32_t position)
{
	uint32_t segment = position / SIM_SEGMENT;

	return (uint32_t)(mix(t->family, (uint64_t)t->branch[segment] << 32 | position) % 50000);
}

static const struct image_place *place_of(const struct sim_text *t, uint32_t image)
{
	return &places[t->family][image];
}

uint32_t text_spans(const struct sim_text *t, uint32_t from, uint32_t to,
		    struct payload_span out[SIM_IMAGES])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SIM_IMAGES; i++) {
		const struct image_place *at = place_of(t, i);

		if (!t->image[i] || at->start < from || at->start >= to)
			continue;
		out[n] = (struct payload_span){.start = at->start, .length = at->length};
		memset(out[n].digest, t->image[i], sizeof(out[n].digest));
		n++;
	}
	return n;
}

void text_drop_images(struct sim_text *t, uint32_t from, uint32_t end)
{
	for (uint32_t i = 0; i < SIM_IMAGES; i++) {
		const struct image_place *at = place_of(t, i);

		if (at->start >= from && at->start < end && at->start + at->length > end)
			t->image[i] = 0;
	}
}

bool text_is_inside_image(const struct sim_text *t, uint32_t position, uint32_t end)
{
	for (uint32_t i = 0; i < SIM_IMAGES; i++) {
		const struct image_place *at = place_of(t, i);

		if (t->image[i] && at->start < end && position > at->start &&
		    position < at->start + at->length)
			return true;
	}
	return false;
}

void text_chain(const struct sim_text *t, uint16_t name_space, uint32_t n, uint64_t *chain)
{
	uint64_t at = mix(name_space + 1, t->variant + 77);

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < SIM_IMAGES; k++) {
			if (t->image[k] && place_of(t, k)->start == i)
				at = mix(at ^ 0x5555,
					 (uint64_t)t->image[k] << 32 | place_of(t, k)->length);
		}
		at = mix(at, text_token(t, i));
		chain[i] = at;
	}
}
