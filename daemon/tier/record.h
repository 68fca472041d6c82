/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TIER_RECORD_H
#define KVHOST_TIER_RECORD_H

/*
 * record: the header that describes a stored object, in KV-RAM and on disk alike: what it is, where
 * its bytes are, whether they are all there. One writer, one scan.
 *
 * A header is 4 KiB. Its state word comes last and is no part of its checksum: FILLING is stored
 * before the first byte of the payload is asked for, VALID after the last has arrived. Whoever
 * finds headers of a process that has died serves those that are VALID or LEAVING; to what is
 * FILLING, transfers may still land.
 * All numbers are in the byte order of the host: a header that was written with another one has
 * the wrong magic.
 *
 * Pure functions on memory; they touch no more than the header, save record_payload_checksum. One
 * thread at a time writes a header.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_BYTES       4096
#define RECORD_MAGIC       0x44524b56u
#define RECORD_VERSION     1
#define RECORD_TOKENS_MAX  64
#define RECORD_SPANS_MAX   64   /* image spans that begin in one page */
#define RECORD_EXTENTS_MAX 224  /* frames runs that an object lies in */
#define RECORD_PARTS_BYTES 3952 /* what all parts of one header may take together */

/* Of each part alone as many fit as its limit says; of all three together, what RECORD_PARTS_BYTES
 * holds: with 64 tokens and 64 spans there is room for 71 extents. */

enum record_kind {
	RECORD_PAGE = 1,
	RECORD_IMAGE,
};

enum record_state { /* of the state word */
		    RECORD_FREE = 0,
		    RECORD_FILLING,
		    RECORD_VALID,
		    RECORD_LEAVING,
};

struct record_span { /* same layout as struct key_image */
	uint32_t start;
	uint32_t length;
	uint8_t digest[32];
};

struct record_extent { /* where a part of the payload lies, in its arena or file */
	uint64_t offset;
	uint64_t bytes;
};

struct record {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;       /* enum record_kind */
	uint64_t boot_nonce; /* with id: never used again */
	uint64_t id;         /* of the node or state */
	uint64_t parent_nonce;
	uint64_t parent_id;
	uint64_t key[2];
	uint8_t stamp[16];      /* of the pool */
	uint8_t name_space[16]; /* digest of its name and salt */
	uint64_t epoch;         /* of the weights */
	uint32_t position;      /* pages before it in its chain; of an image: tokens */
	uint16_t n_tokens;
	uint16_t n_spans;
	uint16_t n_extents;
	uint16_t flags; /* enum record_flag */
	uint32_t reserved;
	uint64_t payload_bytes;
	uint64_t payload_checksum; /* with RECORD_HAS_CHECKSUM */
	uint64_t header_checksum;  /* XXH3-64 of what is before it, followed by the used parts */
	/* then, packed one after another, so that each is aligned: extents[n_extents],
	 * spans[n_spans], tokens[n_tokens]; what is left is not looked at, and zeros: a place is
	 * new memory, or a header was there, or all of it is cleared;
	 * the state word is the last 8 of the 4096 bytes */
};

enum record_flag {
	RECORD_HAS_CHECKSUM = 1,
};

struct record_parts { /* what is packed behind the fixed part */
	const uint32_t *tokens;
	const struct record_span *spans;
	const struct record_extent *extents;
};

enum record_wrong { /* named outcomes of record_read, 0 = good */
		    RECORD_WRONG_MAGIC = 1,
		    RECORD_WRONG_VERSION,
		    RECORD_WRONG_CHECKSUM,
		    RECORD_WRONG_FIELD, /* a count, kind, flag or extent out of its range */
};

/* Write a header into `place` (RECORD_BYTES, aligned to 8): all but the state word, which is set
 * to FILLING first, so that no moment shows VALID over half a header. The counts in `r` say how
 * many of each part there are; magic, version, reserved and header_checksum are filled in. Extents
 * are not empty and hold payload_bytes at least, or there are none. Returns false, with nothing
 * written, if there are more parts than their limits or RECORD_PARTS_BYTES allow. */
bool record_write(void *place, const struct record *r, const struct record_parts *parts);

/* The state word, with release (set) and acquire (get): VALID is seen only after the header and the
 * payload. */
void record_set_state(void *place, enum record_state state);
enum record_state record_state(const void *place); /* an unknown word reads as FREE */

/* Read and verify a header, whatever bytes are there, without its state. *parts point into `place`
 * (aligned to 8), so memory that somebody else may write meanwhile is copied first. 0 or
 * record_wrong; nothing set then. */
int record_read(const void *place, struct record *out, struct record_parts *parts);

/* Look at n headers that lie RECORD_BYTES apart: `visit` is called for each that is not FREE, with
 * what record_read says of it; r and parts are NULL if that is not 0. For the recovery of a tier;
 * takes a while. Returns how many were not free. */
uint64_t record_scan(const void *table, uint64_t n,
		     void (*visit)(void *context, uint64_t index, enum record_state state,
				   int wrong, const struct record *r,
				   const struct record_parts *parts),
		     void *context);

/* XXH3-64 of a payload that lies in extents of `base`. May take long: not on the core. */
uint64_t record_payload_checksum(const void *base, const struct record_extent *extents, uint32_t n);

#endif
