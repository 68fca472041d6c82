/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FUZZ_REQUEST_SCRIPT_H
#define KVHOST_TESTS_FUZZ_REQUEST_SCRIPT_H

/*
 * request_script: what the bytes of an input of fuzz_request mean.
 *
 * A script is a list of actions; each begins with its number and has as many bytes behind it as
 * its row says. What is missing at the end counts as zeros.
 */

#define REQUEST_ACTIONS(ACTION)                                                                    \
	ACTION(RAW, 59)   /* session, 56 bytes of an entry, a byte, how often it is the payload */ \
	ACTION(ATTACH, 2) /* session, layers */                                                    \
	ACTION(DETACH, 1) /* session */                                                            \
	ACTION(OPEN, 5)   /* session, first token, tokens, max, options */                         \
	ACTION(LOOKUP, 5) /* the same */                                                           \
	ACTION(FORK, 3)   /* session, sequence, max */                                             \
	ACTION(TRUNCATE, 3) /* session, sequence, tokens */                                        \
	ACTION(CLOSE, 2)    /* session, sequence */                                                \
	ACTION(TABLE, 2)    /* session, sequence */                                                \
	ACTION(BEGIN, 4)    /* session, sequence, target, window */                                \
	ACTION(COMMIT, 4)   /* session, step, tokens, ids */                                       \
	ACTION(ABORT, 2)    /* session, step */                                                    \
	ACTION(WRITE, 5)    /* session, step, layer and side, first, tokens */                     \
	ACTION(READ, 5)     /* session, sequence or step, layer and side, first, tokens */         \
	ACTION(CANCEL, 2)   /* session, how many submissions ago */                                \
	ACTION(BATCH, 2)    /* session, how many of the submissions before it go into it */        \
	ACTION(ASK, 2)      /* session, question */                                                \
	ACTION(DEADLINE, 1) /* of the next submission, in microseconds */                          \
	ACTION(TURN, 2)     /* turns, whether the workers work */                                  \
	ACTION(TIME, 2)     /* milliseconds, by powers of two */                                   \
	ACTION(POKE, 3)     /* session, where in its window, what */                               \
	ACTION(HANG_UP, 2)  /* session; has its process exited? */                                 \
	ACTION(LAZY, 2)     /* session; does it stop to tell what it has consumed? */

enum request_action {
#define ACTION_NUMBER(name, bytes) SCRIPT_##name,
	REQUEST_ACTIONS(ACTION_NUMBER)
#undef ACTION_NUMBER
	    SCRIPT_ACTIONS
};

static const unsigned char script_bytes[SCRIPT_ACTIONS] = {
#define ACTION_BYTES(name, bytes) (bytes),
    REQUEST_ACTIONS(ACTION_BYTES)
#undef ACTION_BYTES
};

#define SCRIPT_BYTES_MAX 64

/* Options of OPEN. */
#define SCRIPT_NO_REUSE    1u
#define SCRIPT_INTERACTIVE 2u
#define SCRIPT_SPAN        4u
#define SCRIPT_VARIANT     8u
#define SCRIPT_SHORT       16u /* no room for the pages */

#endif
