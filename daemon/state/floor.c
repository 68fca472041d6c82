/* SPDX-License-Identifier: Apache-2.0 */
/* floor: see floor.h. Core thread; nothing here blocks. */
#include "daemon/state/floor.h"

#define KEPT (15.0 / 16) /* of a sum, when something is added */

static void count(uint32_t *samples)
{
	*samples += *samples < FLOOR_SAMPLES;
}

void floor_prefilled(struct floor *f, uint32_t tokens, uint64_t ns)
{
	if (tokens < FLOOR_PREFILL_TOKENS)
		return;
	f->prefill_tokens = f->prefill_tokens * KEPT + tokens;
	f->prefill_ns = f->prefill_ns * KEPT + (double)ns;
	count(&f->prefills);
}

void floor_restored(struct floor *f, uint32_t tokens, uint64_t ns, uint64_t move_ns)
{
	double delay_ns = ns > move_ns ? (double)(ns - move_ns) : 0;

	if (tokens == 0)
		return;
	f->restore_tokens = f->restore_tokens * KEPT + tokens;
	f->move_ns = f->move_ns * KEPT + (double)move_ns;
	f->delay_ns = f->restores ? f->delay_ns * KEPT + delay_ns * (1 - KEPT) : delay_ns;
	count(&f->restores);
}

static double a_token(double ns, double tokens)
{
	return tokens > 0 ? ns / tokens : 0;
}

uint64_t floor_prefill_ns(const struct floor *f)
{
	return (uint64_t)(a_token(f->prefill_ns, f->prefill_tokens) + 0.5);
}

uint64_t floor_restore_ns(const struct floor *f)
{
	return (uint64_t)(a_token(f->move_ns, f->restore_tokens) + 0.5);
}

uint32_t floor_tokens(const struct floor *f)
{
	double gain_ns =
	    a_token(f->prefill_ns, f->prefill_tokens) - a_token(f->move_ns, f->restore_tokens);

	if (f->prefills < FLOOR_SAMPLES || f->restores < FLOOR_SAMPLES)
		return FLOOR_UNKNOWN_TOKENS;
	if (gain_ns * FLOOR_NEVER_TOKENS <= f->delay_ns)
		return FLOOR_NEVER_TOKENS;
	return (uint32_t)(f->delay_ns / gain_ns);
}

bool floor_probe(struct floor *f)
{
	f->opens = (f->opens + 1) % FLOOR_PROBE;
	return f->opens == 0;
}
