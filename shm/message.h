/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SHM_MESSAGE_H
#define KVHOST_SHM_MESSAGE_H

/*
 * message: what travels on the socket: a 128-byte head, then up to WIRE_TEXT_MAX bytes of text.
 *
 * The socket carries descriptors, wake-ups and the two ends of a session. Requests never use it.
 * Segment sizes are what fstat says of the descriptor, never what a message says.
 */

#include "shm/wire.h"

enum message_type {
	MESSAGE_HELLO = 1, /* client: the first message */
	MESSAGE_WELCOME,   /* daemon: accepted; carries the control and window descriptors */
	MESSAGE_REFUSE,    /* daemon: not accepted, or accepted no longer; text says why */
	MESSAGE_SEGMENT,   /* daemon: one descriptor of a pool */
	MESSAGE_WAKE,      /* either way: look at the ring */
	MESSAGE_BYE,       /* either way: the session ends; daemon: text says why */
	MESSAGE_CONFIRM,   /* client: echoes the nonce of a welcome, with its credentials */
};

#define MESSAGE_WELCOME_FDS 2 /* control, window, in this order */
#define MESSAGE_SEGMENT_FDS 1

struct message_hello {
	uint16_t min_major;
	uint16_t min_minor;
	uint16_t max_major;
	uint16_t max_minor;
	uint64_t window_bytes;          /* wanted; 0 = the daemon's default */
	char name_space[WIRE_NAME_MAX]; /* wanted; "" = whatever the peer's user may use */
	char client[WIRE_NAME_MAX];     /* shown by kvctl; printable ASCII */
	uint8_t reserved[24];
};

struct message_welcome {
	uint16_t major; /* the version that this session speaks */
	uint16_t minor;
	uint32_t session;
	uint64_t nonce;            /* 0 = no confirm wanted */
	uint32_t submission_slots; /* powers of two */
	uint32_t completion_slots;
	uint32_t credits; /* ordinary operations in flight, at most */
	uint32_t spin_us; /* how long the daemon spins before it sleeps */
	char name_space[WIRE_NAME_MAX];
	uint8_t reserved[40];
};

struct message_refuse {
	int32_t status;     /* enum wire_status */
	uint16_t min_major; /* the versions that the daemon speaks, for EVERSION */
	uint16_t max_major;
	uint8_t reserved[96];
};

struct message_segment {
	uint64_t submission; /* ring sequence of the attach that it belongs to; 0 = the pool grew */
	uint32_t pool_index;
	uint32_t pool_generation;
	uint32_t part; /* 0 .. parts - 1 */
	uint32_t parts;
	uint64_t first_page;    /* page records of the pool lie in its parts in order */
	uint32_t backing_bytes; /* size of the memory pages behind it */
	uint8_t reserved[68];
};

struct message_bye {
	uint32_t reason; /* enum wire_bye */
	uint8_t reserved[100];
};

struct message_confirm {
	uint64_t nonce;
	uint8_t reserved[96];
};

struct message {
	uint32_t magic;
	uint16_t type;
	uint16_t head_bytes; /* sizeof(struct message) */
	uint32_t text_bytes; /* behind the head; only welcome, refuse and bye may have some */
	uint32_t n_fds;      /* descriptors that travel with it */
	uint64_t boot_epoch; /* the daemon's; 0 from a client */
	union {
		struct message_hello hello;
		struct message_welcome welcome;
		struct message_refuse refuse;
		struct message_segment segment;
		struct message_bye bye;
		struct message_confirm confirm;
		uint8_t bytes[104];
	} u;
};

_Static_assert(sizeof(struct message) == 128, "message head");
_Static_assert(sizeof(struct message_hello) == 104, "hello");
_Static_assert(sizeof(struct message_welcome) == 104, "welcome");
_Static_assert(sizeof(struct message_refuse) == 104, "refuse");
_Static_assert(sizeof(struct message_segment) == 104, "segment");
_Static_assert(sizeof(struct message_bye) == 104, "bye");
_Static_assert(sizeof(struct message_confirm) == 104, "confirm");

/*
 * A message as it must look on arrival: size, magic, type, text, descriptors and reserved bytes.
 * `got_bytes` is what recvmsg returned. 0, or -EPROTO and *why names the field that is wrong.
 */
int message_check(const struct message *m, uint64_t got_bytes, uint32_t got_fds, const char **why);

#endif
