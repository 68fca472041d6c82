/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: see reuse.h. Core thread; nothing here blocks. */
#include "daemon/state/reuse.h"

#include "daemon/base/testing.h"

#define CERTAINTY 20. /* pages at risk at which a class's own hazard weighs as all classes' */
#define GROWTH    1.5
#define SILENT    (1. / 32) /* less than this share of the usual reuse is silence */
#define PAUSED    .25       /* this share of what ends it, from before: it was a pause */

/* Youngest whole age of each bucket: the powers of 1.5, rounded up. */
static const uint32_t edges[REUSE_BUCKETS] = {
    0,      1,      2,      3,      4,      6,      8,       12,    18,    26,
    39,     58,     87,     130,    195,    292,    438,     657,   986,   1478,
    2217,   3326,   4988,   7482,   11223,  16835,  25252,   37877, 56816, 85223,
    127835, 191752, 287627, 431440, 647160, 970740, 1456110,
};

uint64_t reuse_edge(uint32_t bucket)
{
	return edges[bucket];
}

uint32_t reuse_bucket(uint64_t age)
{
	uint32_t low = 0, high = REUSE_BUCKETS;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (edges[middle] <= age)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void reuse_init(struct reuse *u)
{
	*u = (struct reuse){0};
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		u->rank_of[i] = (uint16_t)i;
		u->cell_at[i] = (uint16_t)i;
	}
	reuse_refresh(u);
	u->refreshes = 0;
}

static void fill_widths(double width[REUSE_BUCKETS])
{
	double edge = 1;

	width[0] = 1;
	for (uint32_t b = 1; b < REUSE_BUCKETS; b++) {
		double next = edge * GROWTH;

		width[b] = next - edge;
		edge = next;
	}
}

/* Go on waiting from a bucket's age, as long as that raises the rate: Gittins's rule. */
static double best_rate(const double hazard[REUSE_BUCKETS], const double width[REUSE_BUCKETS],
			uint32_t bucket)
{
	double unused = 1, reused = 0, waited = 0, best = 0;

	for (uint32_t b = bucket; b < REUSE_BUCKETS; b++) {
		waited += unused * width[b] * (1 - .5 * hazard[b]);
		reused += unused * hazard[b];
		unused *= 1 - hazard[b];
		if (reused > best * waited)
			best = reused / waited;
	}
	return best;
}

/* Pages that came to each bucket, less half of those that did not stay to its end unused. */
static void count_risk(const struct reuse *u, double risk[REUSE_CELLS])
{
	for (uint32_t class = 0; class < REUSE_CLASSES; class ++) {
		double reached = 0;

		for (uint32_t b = REUSE_BUCKETS; b-- > 0;) {
			uint32_t cell = reuse_cell(class, b);
			double stopped = u->forgotten[cell] + (double)u->waiting[cell];

			reached += u->reused[cell] + stopped;
			risk[cell] = reached - .5 * stopped;
		}
	}
}

static void fill_index(struct reuse *u)
{
	double risk[REUSE_CELLS], hazard[REUSE_CLASSES][REUSE_BUCKETS], width[REUSE_BUCKETS];

	fill_widths(width);
	count_risk(u, risk);
	for (uint32_t b = 0; b < REUSE_BUCKETS; b++) {
		double reused = .01, at_risk = 1, pooled;

		for (uint32_t class = 0; class < REUSE_CLASSES; class ++) {
			reused += u->reused[reuse_cell(class, b)];
			at_risk += risk[reuse_cell(class, b)];
		}
		pooled = reused / at_risk;
		for (uint32_t class = 0; class < REUSE_CLASSES; class ++) {
			uint32_t cell = reuse_cell(class, b);
			double h =
			    (u->reused[cell] + CERTAINTY * pooled) / (risk[cell] + CERTAINTY);

			hazard[class][b] = h > 1 ? 1 : h;
		}
	}
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		u->index[i] = best_rate(hazard[i / REUSE_BUCKETS], width, i % REUSE_BUCKETS);
}

/* Of one age all are equal, and the younger are worth more: an order by opens, that of lru. */
static void fill_index_by_age(struct reuse *u)
{
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		u->index[i] = 1. / (1 + i % REUSE_BUCKETS);
}

/* Habits have changed: only what was reused since the last table tells of the new ones. */
static void forget_habits(struct reuse *u)
{
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		u->reused[i] -= u->reused_then[i];
		u->forgotten[i] = 0;
	}
	u->patience = 0;
}

/* Is what was reused since the last table silence, or does it end one? */
static void listen(struct reuse *u)
{
	uint64_t opens = (uint64_t)u->silence * REUSE_REFRESH;
	double usual = 0, lately = 0, from_before = 0;

	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		double reused = u->reused[i] - u->reused_then[i];

		usual += u->reused_then[i] * (1 - REUSE_DECAY);
		lately += reused;
		if (reuse_edge(i % REUSE_BUCKETS) >= opens)
			from_before += reused;
	}
	/* One page more: where little is usual, nothing for a while is no silence. */
	if (lately + 1 < SILENT * usual) {
		u->silence++;
		return;
	}
	if (u->silence == 0)
		return;
	if (from_before < PAUSED * lately)
		forget_habits(u);
	else if (u->silence > u->patience && protection(pauses_are_remembered))
		u->patience = u->silence;
	u->silence = 0;
}

/* Lower index first; of equal ones the older, then the lower class. */
static bool goes_before(const struct reuse *u, uint32_t a, uint32_t b)
{
	if (u->index[a] < u->index[b] || u->index[a] > u->index[b])
		return u->index[a] < u->index[b];
	if (a % REUSE_BUCKETS != b % REUSE_BUCKETS)
		return a % REUSE_BUCKETS > b % REUSE_BUCKETS;
	return a < b;
}

/* The order changes little from one table to the next: put each in its place among those before. */
static void fill_ranks(struct reuse *u)
{
	for (uint32_t i = 1; i < REUSE_CELLS; i++) {
		uint16_t cell = u->cell_at[i];
		uint32_t at = i;

		for (; at > 0 && goes_before(u, cell, u->cell_at[at - 1]); at--)
			u->cell_at[at] = u->cell_at[at - 1];
		u->cell_at[at] = cell;
	}
	for (uint32_t i = 0; i < REUSE_CELLS; i++)
		u->rank_of[u->cell_at[i]] = (uint16_t)i;
}

void reuse_refresh(struct reuse *u)
{
	listen(u);
	for (uint32_t i = 0; i < REUSE_CELLS; i++) {
		u->reused[i] *= REUSE_DECAY;
		u->reused_then[i] = u->reused[i];
		u->forgotten[i] *= REUSE_DECAY;
	}
	if (reuse_in_doubt(u) && protection(silence_is_doubted)) {
		fill_index_by_age(u);
		u->doubts++;
	} else {
		fill_index(u);
	}
	fill_ranks(u);
	u->refreshes++;
}
