/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/tier/record.h: headers as they were written, and every way to be no header. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/tier/record.h"

#include <setjmp.h>
#include <signal.h>
#include <stdalign.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "daemon/base/random.h"
#include "daemon/state/key.h"

#define STATE_AT (RECORD_BYTES - 8)
#define FIXED    sizeof(struct record)
#define N_SCAN   500

_Static_assert(sizeof(struct record_span) == sizeof(struct key_image), "one layout");
_Static_assert(offsetof(struct record_span, digest) == offsetof(struct key_image, digest), "same");

/* A header and what was put into it. */
struct sample {
	alignas(64) unsigned char place[RECORD_BYTES];
	struct record record;
	uint32_t tokens[RECORD_TOKENS_MAX];
	struct record_span spans[RECORD_SPANS_MAX];
	struct record_extent extents[RECORD_EXTENTS_MAX];
	struct record_parts parts;
};

static void fill(void *to, size_t bytes, struct random *random)
{
	unsigned char *at = to;

	for (size_t i = 0; i < bytes; i++)
		at[i] = (unsigned char)random_next(random);
}

static void make(struct sample *s, uint16_t n_tokens, uint16_t n_spans, uint16_t n_extents,
		 uint64_t seed)
{
	struct random random = {.state = seed};

	memset(s, 0, sizeof(*s));
	fill(&s->record, sizeof(s->record), &random);
	fill(s->tokens, sizeof(s->tokens), &random);
	fill(s->spans, sizeof(s->spans), &random);
	s->record.kind = RECORD_PAGE;
	s->record.flags = RECORD_HAS_CHECKSUM;
	s->record.n_tokens = n_tokens;
	s->record.n_spans = n_spans;
	s->record.n_extents = n_extents;
	s->record.payload_bytes = n_extents ? n_extents * (2ull << 20) : 12345;
	for (uint64_t i = 0; i < RECORD_EXTENTS_MAX; i++)
		s->extents[i] = (struct record_extent){(i * 7 + seed % 5) << 21, 2 << 20};
	s->parts = (struct record_parts){s->tokens, s->spans, s->extents};
}

/* What the code wrote there and then said of it. */
static void check_reads_back(const struct sample *s)
{
	struct record r;
	struct record_parts parts;

	assert_int_equal(record_read(s->place, &r, &parts), 0);
	assert_int_equal(r.magic, RECORD_MAGIC);
	assert_int_equal(r.version, RECORD_VERSION);
	assert_int_equal(r.reserved, 0);
	/* All that is the caller's: from kind to flags, and the payload's two numbers. */
	assert_memory_equal(&r.kind, &s->record.kind,
			    offsetof(struct record, reserved) - offsetof(struct record, kind));
	assert_int_equal(r.payload_bytes, s->record.payload_bytes);
	assert_int_equal(r.payload_checksum, s->record.payload_checksum);

	assert_int_equal((uintptr_t)parts.extents % alignof(struct record_extent), 0);
	assert_memory_equal(parts.extents, s->extents, r.n_extents * sizeof(*s->extents));
	assert_memory_equal(parts.spans, s->spans, r.n_spans * sizeof(*s->spans));
	assert_memory_equal(parts.tokens, s->tokens, r.n_tokens * sizeof(*s->tokens));
}

static size_t used_bytes(const struct sample *s)
{
	return FIXED + s->record.n_tokens * sizeof(*s->tokens) +
	       s->record.n_spans * sizeof(*s->spans) + s->record.n_extents * sizeof(*s->extents);
}

/* Nothing of who had the place before is left. */
static void check_rest_is_empty(const struct sample *s)
{
	for (size_t at = used_bytes(s); at < STATE_AT; at++)
		assert_int_equal(s->place[at], 0);
}

static int wrong_of(const struct sample *s)
{
	struct record r = {.id = 77};
	struct record_parts parts = {0};
	int wrong = record_read(s->place, &r, &parts);

	if (wrong) {
		assert_int_equal(r.id, 77);
		assert_null(parts.tokens);
	}
	return wrong;
}

static void a_header_reads_back_as_it_was_written(void **state)
{
	static const uint16_t n[][3] = {{0, 0, 0},    {64, 0, 0},   {0, 64, 0}, {0, 0, 224},
					{64, 64, 71}, {64, 2, 224}, {1, 0, 1},  {63, 1, 3},
					{0, 9, 224},  {17, 5, 2}};
	struct sample s;

	(void)state;
	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
		make(&s, n[i][0], n[i][1], n[i][2], i);
		memset(s.place, 0x5a, sizeof(s.place));
		assert_true(record_write(s.place, &s.record, &s.parts));
		assert_int_equal(record_state(s.place), RECORD_FILLING);
		check_reads_back(&s);
		check_rest_is_empty(&s);
	}
}

static void of_the_header_that_was_there_before_nothing_is_left(void **state)
{
	static const uint16_t n[][3] = {
	    {0, 0, 0}, {64, 0, 1}, {64, 64, 71}, {64, 2, 224}, {1, 1, 1}};
	const size_t most = sizeof(n) / sizeof(n[0]);
	struct sample s;

	(void)state;
	for (size_t i = 0; i < most * most; i++) {
		const uint16_t *before = n[i / most], *after = n[i % most];
		unsigned char place[RECORD_BYTES];

		make(&s, before[0], before[1], before[2], i);
		assert_true(record_write(s.place, &s.record, &s.parts));
		memcpy(place, s.place, sizeof(place));
		make(&s, after[0], after[1], after[2], i + 1000);
		memcpy(s.place, place, sizeof(place));
		assert_true(record_write(s.place, &s.record, &s.parts));
		check_reads_back(&s);
		check_rest_is_empty(&s);
	}
}

static void parts_that_do_not_fit_are_refused_and_nothing_is_written(void **state)
{
	static const uint16_t n[][3] = {
	    {65, 0, 0},
	    {0, 65, 0},
	    {0, 0, 225},
	    {64, 64, 72},
	    {64, 3, 224},
	    {0, 10, 224},
	    {UINT16_MAX, UINT16_MAX, UINT16_MAX},
	};
	struct sample s;

	(void)state;
	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
		make(&s, n[i][0], n[i][1], n[i][2], i);
		memset(s.place, 0x5a, sizeof(s.place));
		assert_false(record_write(s.place, &s.record, &s.parts));
		for (size_t at = 0; at < RECORD_BYTES; at++)
			assert_int_equal(s.place[at], 0x5a);
	}
}

static void the_state_is_no_part_of_the_header_and_an_unknown_word_is_free(void **state)
{
	static const enum record_state all[] = {RECORD_VALID, RECORD_LEAVING, RECORD_FILLING,
						RECORD_FREE};
	const uint64_t unknown[] = {4, 257, 1ull << 32, (1ull << 32) + RECORD_VALID, UINT64_MAX};
	struct sample s;

	(void)state;
	make(&s, 64, 1, 1, 3);
	assert_true(record_write(s.place, &s.record, &s.parts));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		record_set_state(s.place, all[i]);
		assert_int_equal(record_state(s.place), all[i]);
		check_reads_back(&s);
	}
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		memcpy(s.place + STATE_AT, &unknown[i], 8);
		assert_int_equal(record_state(s.place), RECORD_FREE);
	}
}

static void every_flipped_bit_of_what_is_used_is_noticed(void **state)
{
	static const uint16_t n[][3] = {{64, 2, 1}, {0, 0, 0}, {5, 0, 3}, {64, 64, 71}};
	struct sample s;

	(void)state;
	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
		make(&s, n[i][0], n[i][1], n[i][2], i);
		assert_true(record_write(s.place, &s.record, &s.parts));
		for (size_t bit = 0; bit < RECORD_BYTES * 8ull; bit++) {
			bool used = bit / 8 < used_bytes(&s);

			s.place[bit / 8] ^= (unsigned char)(1u << bit % 8);
			assert_int_equal(wrong_of(&s) != 0, used);
			s.place[bit / 8] ^= (unsigned char)(1u << bit % 8);
		}
		check_reads_back(&s);
	}
}

static void a_header_of_two_halves_is_no_header(void **state)
{
	struct sample old, new, torn;

	(void)state;
	make(&old, 64, 64, 71, 1);
	make(&new, 64, 3, 200, 2);
	assert_true(record_write(old.place, &old.record, &old.parts));
	assert_true(record_write(new.place, &new.record, &new.parts));
	torn = new;
	/* Both begin alike: magic, version, kind. */
	for (size_t at = 9; at < used_bytes(&new); at++) {
		memcpy(torn.place, old.place, RECORD_BYTES);
		memcpy(torn.place, new.place, at);
		assert_int_not_equal(wrong_of(&torn), 0);
		memcpy(torn.place, new.place, RECORD_BYTES);
		memcpy(torn.place, old.place, at);
		assert_int_not_equal(wrong_of(&torn), 0);
	}
}

/* The checksum as the header file tells it, made right for whatever is there. */
static void sign(struct sample *s)
{
	unsigned char hashed[RECORD_BYTES];
	const size_t before = offsetof(struct record, header_checksum);
	struct record r;
	uint64_t sum;

	memcpy(&r, s->place, sizeof(r));
	s->record = r;
	memcpy(hashed, s->place, before);
	memcpy(hashed + before, s->place + FIXED, used_bytes(s) - FIXED);
	sum = XXH3_64bits(hashed, before + used_bytes(s) - FIXED);
	memcpy(s->place + before, &sum, sizeof(sum));
}

static int wrong_with(const struct record *fixed, const struct record_extent *extents)
{
	struct sample s;

	make(&s, 3, 1, 2, 9);
	assert_true(record_write(s.place, &s.record, &s.parts));
	memcpy(s.place, fixed, FIXED);
	if (extents)
		memcpy(s.place + FIXED, extents, 2 * sizeof(*extents));
	sign(&s);
	return wrong_of(&s);
}

static void foreign_headers_are_told_by_name(void **state)
{
	struct record good, r;
	struct record_parts parts;
	struct sample s;

	(void)state;
	make(&s, 3, 1, 2, 9);
	assert_true(record_write(s.place, &s.record, &s.parts));
	assert_int_equal(record_read(s.place, &good, &parts), 0);
	assert_int_equal(wrong_with(&good, NULL), 0);

	r = good;
	r.magic = __builtin_bswap32(RECORD_MAGIC);
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_MAGIC);
	r = good;
	r.version = RECORD_VERSION + 1;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_VERSION);
	r.version = 0;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_VERSION);
	r = good;
	r.kind = 0;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_FIELD);
	r.kind = RECORD_IMAGE + 1;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_FIELD);
	r = good;
	r.flags = RECORD_HAS_CHECKSUM << 1;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_FIELD);
	r = good;
	r.payload_bytes = (4 << 20) + 1;
	assert_int_equal(wrong_with(&r, NULL), RECORD_WRONG_FIELD);
	memset(s.place, 0, RECORD_BYTES);
	assert_int_equal(wrong_of(&s), RECORD_WRONG_MAGIC);
}

static void extents_and_counts_out_of_range_are_wrong_though_their_checksum_is_right(void **state)
{
	static const struct record_extent bad[][2] = {
	    {{0, 4 << 20}, {4 << 20, 0}},          {{0, 4 << 20}, {UINT64_MAX, 1}},
	    {{UINT64_MAX - 3, 3}, {0, 4 << 20}},   {{UINT64_MAX - 2, 3}, {0, 4 << 20}},
	    {{0, UINT64_MAX}, {0, (4 << 20) + 1}}, {{0, 2 << 20}, {2 << 20, (2 << 20) - 1}},
	};
	static const size_t counts[] = {offsetof(struct record, n_tokens),
					offsetof(struct record, n_spans),
					offsetof(struct record, n_extents)};
	static const uint16_t most[] = {RECORD_TOKENS_MAX, RECORD_SPANS_MAX, RECORD_EXTENTS_MAX};
	struct record good;
	struct record_parts parts;
	struct sample s;

	(void)state;
	make(&s, 3, 1, 2, 9);
	assert_true(record_write(s.place, &s.record, &s.parts));
	assert_int_equal(record_read(s.place, &good, &parts), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(wrong_with(&good, bad[i]), i == 2 ? 0 : RECORD_WRONG_FIELD);

	/* No count, however large, makes anybody look outside of the header. */
	for (int c = 0; c < 3; c++) {
		for (uint32_t n = 0; n <= UINT16_MAX; n += n < 300 ? 1 : 509) {
			uint16_t count = (uint16_t)n;

			memcpy(s.place, &good, FIXED);
			memcpy(s.place + counts[c], &count, sizeof(count));
			if (n > most[c])
				assert_int_equal(wrong_of(&s), RECORD_WRONG_FIELD);
			else
				(void)wrong_of(&s);
		}
	}
}

struct scanned {
	struct sample *table;
	uint64_t next, n, n_good;
};

static void note_scanned(void *context, uint64_t index, enum record_state state, int wrong,
			 const struct record *r, const struct record_parts *parts)
{
	struct scanned *seen = context;

	assert_true(index >= seen->next);
	seen->next = index + 1;
	seen->n++;
	assert_int_not_equal(state, RECORD_FREE);
	assert_int_equal(wrong != 0, r == NULL);
	assert_int_equal(wrong != 0, parts == NULL);
	if (!wrong) {
		assert_int_equal(index % 5, 0);
		assert_int_equal(r->id, index);
		assert_int_equal(parts->tokens[0], index * 3);
		seen->n_good++;
	}
}

/* Every fifth is a header; the others are random bytes, some under a good magic and version. */
static void a_scan_finds_the_headers_in_a_table_of_garbage(void **state)
{
	static alignas(64) unsigned char table[N_SCAN][RECORD_BYTES];
	struct scanned seen = {0};
	struct random random = {.state = 17};
	uint64_t n_used = 0, n_good = 0;
	struct sample s;

	(void)state;
	for (uint64_t i = 0; i < N_SCAN; i++) {
		enum record_state word = (enum record_state)(random_next(&random) % 4);

		fill(table[i], RECORD_BYTES, &random);
		if (i % 5 == 0) {
			make(&s, 64, 2, 2, i);
			s.record.id = i;
			s.tokens[0] = (uint32_t)i * 3;
			assert_true(record_write(table[i], &s.record, &s.parts));
		} else if (i % 5 > 2) {
			memcpy(table[i],
			       &(struct record){.magic = RECORD_MAGIC, .version = RECORD_VERSION},
			       offsetof(struct record, kind));
		}
		if (i % 5 < 4) {
			record_set_state(table[i], word);
			n_used += word != RECORD_FREE;
			n_good += i % 5 == 0 && word != RECORD_FREE;
		}
	}
	assert_int_equal(record_scan(table, N_SCAN, note_scanned, &seen), n_used);
	assert_int_equal(seen.n, n_used);
	assert_int_equal(seen.n_good, n_good);
	assert_true(n_good > N_SCAN / 10);
	assert_int_equal(record_scan(table, 0, note_scanned, &seen), 0);
}

static sigjmp_buf out_of_a_fault;

static void leave_fault(int signal)
{
	(void)signal;
	siglongjmp(out_of_a_fault, 1);
}

/* The header lies in a page that cannot be written, its state word in the next one, which can. */
static void filling_is_stored_before_anything_else(void **state)
{
	const struct sigaction catch = {.sa_handler = leave_fault};
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *pages =
	    mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *place = pages + page - STATE_AT;
	struct sigaction before;
	volatile bool faulted = false;
	struct sample s;

	(void)state;
	assert_true(pages != MAP_FAILED);
	make(&s, 64, 1, 1, 5);
	assert_true(record_write(place, &s.record, &s.parts));
	record_set_state(place, RECORD_VALID);
	memcpy(s.place, place, RECORD_BYTES);
	assert_int_equal(mprotect(pages, page, PROT_READ), 0);

	assert_int_equal(sigaction(SIGSEGV, &catch, &before), 0);
	s.record.id++;
	if (sigsetjmp(out_of_a_fault, 1) == 0)
		record_write(place, &s.record, &s.parts);
	else
		faulted = true;
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	assert_true(faulted);
	assert_int_equal(record_state(place), RECORD_FILLING);
	assert_memory_equal(place, s.place, STATE_AT);
	munmap(pages, 2 * page);
}

static void the_payloads_checksum_is_that_of_its_bytes_in_the_order_of_the_extents(void **state)
{
	static unsigned char base[10000], joined[10000];
	const struct record_extent extents[] = {{7000, 3000}, {0, 1}, {100, 5000}};
	struct random random = {.state = 4};
	size_t n = 0;

	(void)state;
	fill(base, sizeof(base), &random);
	for (int i = 0; i < 3; i++) {
		memcpy(joined + n, base + extents[i].offset, extents[i].bytes);
		n += extents[i].bytes;
	}
	assert_true(record_payload_checksum(base, extents, 3) == XXH3_64bits(joined, n));
	base[5099]++;
	assert_false(record_payload_checksum(base, extents, 3) == XXH3_64bits(joined, n));
	base[5099]--;
	base[5100]++;
	assert_true(record_payload_checksum(base, extents, 3) == XXH3_64bits(joined, n));
	assert_true(record_payload_checksum(base, extents, 0) == XXH3_64bits("", 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_header_reads_back_as_it_was_written),
	    cmocka_unit_test(of_the_header_that_was_there_before_nothing_is_left),
	    cmocka_unit_test(parts_that_do_not_fit_are_refused_and_nothing_is_written),
	    cmocka_unit_test(the_state_is_no_part_of_the_header_and_an_unknown_word_is_free),
	    cmocka_unit_test(every_flipped_bit_of_what_is_used_is_noticed),
	    cmocka_unit_test(a_header_of_two_halves_is_no_header),
	    cmocka_unit_test(foreign_headers_are_told_by_name),
	    cmocka_unit_test(
		extents_and_counts_out_of_range_are_wrong_though_their_checksum_is_right),
	    cmocka_unit_test(a_scan_finds_the_headers_in_a_table_of_garbage),
	    cmocka_unit_test(filling_is_stored_before_anything_else),
	    cmocka_unit_test(
		the_payloads_checksum_is_that_of_its_bytes_in_the_order_of_the_extents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
