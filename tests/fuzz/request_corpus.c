/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_corpus: writes the inputs of tests/fuzz/corpus/request from scripts that can be read.
 *
 * PROGRAM FOLDER: one file a script. Run by hand when request_script.h changes. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/fuzz/request_script.h"

/* Actions with their bytes; bytes that are left out at the end of an action are zeros. */
static const struct {
	const char *name, *text;
} scripts[] = {
    {"round", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
	      "write 0 0 0 0 40; turn 8; commit 0 0 40; turn 8; read 0 0 0 0 40; "
	      "turn 8; close; turn 8; lookup 1 10 40;"},
    {"shared_prefix", "attach; turn 8; attach 1; turn 8; open 0 10 40 60; turn 8; "
		      "begin 0 0 40; turn 8; write 0 0 0 0 40; turn 8; commit 0 0 40; turn 8; "
		      "open 1 10 40 60; turn 8; begin 1 0 50; turn 8; write 1 0 0 32 18; "
		      "turn 8; commit 1 0 18 1; turn 8;"},
    {"close_behind_a_write",
     "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
     "turn 2 3; write 0 0 0 0 40; close; truncate; close; turn 2 3; turn 8;"},
    {"begin_behind_a_close", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
			     "turn 2 3; write 0 0 0 0 40; close; truncate; begin 0 0 50; turn 2 3; "
			     "turn 8;"},
    {"hang_up_in_a_write",
     "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
     "turn 2 3; write 0 0 0 0 40; commit 0 0 40; turn 2 3; hang_up; turn 2 3; "
     "turn 8;"},
    {"exit_in_a_step", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
		       "hang_up 0 1; turn 8;"},
    {"hang_up_then_exit", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; hang_up; "
			  "turn 8;"},
    {"fork_and_diverge", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
			 "write 0 0 0 0 40; turn 8; commit 0 0 40; turn 8; fork 0 0 60; turn 8; "
			 "begin 0 1 50; turn 8; commit 0 1 10 1; turn 8; begin 0 0 50; turn 8; "
			 "truncate 0 1 20; turn 8;"},
    {"truncate_and_go_on", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
			   "write 0 0 0 0 40; turn 8; commit 0 0 40; turn 8; truncate 0 0 20; "
			   "turn 8; begin 0 0 40; turn 8; commit 0 1 20 1; turn 8;"},
    {"batch", "attach; turn 8; open 0 10 40 60; turn 8; table; lookup 0 10 40; "
	      "open 0 30 20 30; batch 0 4; turn 8;"},
    {"batch_of_batches", "attach; turn 8; batch 0 3; cancel 0 1; batch 0 5; turn 8; batch; "
			 "turn 8;"},
    {"batch_hang_up", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
		      "commit 0 0 40; open 0 30 100 120; batch 0 3; turn; hang_up; turn 8;"},
    {"cancelled_batch", "attach; turn 8; open 0 10 40 60; turn 8; open 0 30 120 127; batch 0 7; "
			"turn; cancel 0 1; turn 8; close; batch 0 1; turn; cancel 0 1; turn 8;"},
    {"admission", "attach; turn 8; open 0 0 90 100; open 0 10 90 100; open 0 20 90 100; "
		  "open 0 30 90 100; open 0 40 90 100; turn 8; cancel 0 1; close; turn 8; "
		  "time 255 24; turn 8;"},
    {"deadlines", "attach; turn 8; open 0 10 40 60; turn 8; open 0 90 90 127; deadline 1; "
		  "open 0 80 90 127; turn 8; time 1 20; turn 8;"},
    {"write_times_out", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
			"turn 2 3; deadline 1; write 0 0 0 0 40; commit 0 0 40; turn 2 3; "
			"time 255 16; turn 2 3; turn 8;"},
    {"expiry", "attach; turn 8; open 0 10 40 60; turn 8; begin 0 0 40; turn 8; "
	       "time 30 27; turn 8; commit 0 0 40; turn 8; time 60 27; turn 8; table; "
	       "turn 8; close; turn 8;"},
    {"guessed_handles", "attach; turn 8; attach 1; turn 8; open 0 10 40 60; turn 8; "
			"begin 0 0 40; turn 8; write 0 0 0 0 40; turn 8; commit 0 0 40; turn 8; "
			"read 1 8 0 0 40; close 1 8; begin 1 8 50; abort 1 8; table 1 24; "
			"turn 8;"},
    {"images", "attach; turn 8; open 0 10 100 110 4; turn 8; begin 0 0 100; turn 8; "
	       "commit 0 0 100 2; turn 8; open 0 10 110 120 4; turn 8; "
	       "open 0 10 90 120 12; turn 8;"},
    {"window", "attach; turn 8; open 0 10 40 120; turn 8; begin 0 0 100 50; turn 8; "
	       "commit 0 0 100 1; turn 8; fork 0 0 120; truncate 0 0 50; table; turn 8;"},
    {"admin", "attach; turn 8; open 0 10 40 60; turn 8; ask; ask 0 1; ask 0 2; "
	      "ask 0 3; ask 0 4; ask 0 5; ask 0 6; ask 0 7; turn 8;"},
    {"credits", "attach; turn 8; lazy 0 1; ask; ask; ask; ask; ask; ask; ask; ask; ask; "
		"ask; ask; ask; ask; ask; ask; ask; ask; ask; ask; ask; ask; ask; ask; "
		"ask; ask; ask; ask; ask; ask; ask; ask; turn 8;"},
    {"raw", "attach; turn 8; "
	    "raw 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 16 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 32 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 96 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "raw 0 7 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
	    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 9; "
	    "turn 8;"},
    {"detach_while_open", "attach; turn 8; open 0 10 40 60; turn 8; detach; turn 8; close; detach; "
			  "turn 8; open 0 10 40 60; turn 8;"},
    {"pool_is_full", "attach; turn 8; open 0 0 30 32; turn 8; begin 0 0 32; turn 8; "
		     "commit 0 0 32 1; turn 8; open 0 20 30 32; turn 8; begin 0 1 32; turn 8; "
		     "commit 0 1 32 1; turn 8; open 0 40 30 32; turn 8; begin 0 2 32; turn 8; "
		     "commit 0 2 32 1; turn 8; open 0 60 30 32; turn 8; begin 0 3 32; turn 8; "
		     "commit 0 3 32 1; turn 8; open 0 80 30 32; turn 8; begin 0 4 32; turn 8; "
		     "commit 0 4 32 1; turn 8; open 0 100 30 32; turn 8; begin 0 5 32; "
		     "turn 8; commit 0 5 32 1; turn 8; close 0 1; turn 8; "
		     "open 0 200 100 100 2; turn 8;"},
};

static const char *const action_names[] = {
#define ACTION_NAME(name, bytes) #name,
    REQUEST_ACTIONS(ACTION_NAME)
#undef ACTION_NAME
};

/* The number of the action that begins the text, or SCRIPT_ACTIONS. */
static unsigned find_action(const char *text)
{
	size_t length = strcspn(text, " ;");
	unsigned i = 0;

	while (i < SCRIPT_ACTIONS && (strlen(action_names[i]) != length ||
				      strncasecmp(action_names[i], text, length) != 0))
		i++;
	return i;
}

static int write_action(FILE *f, const char **text)
{
	unsigned char bytes[1 + SCRIPT_BYTES_MAX] = {0};
	unsigned action = find_action(*text), n = 0;
	const char *at = *text + strcspn(*text, " ;");
	char *end;

	if (action == SCRIPT_ACTIONS)
		return -EINVAL;
	bytes[0] = (unsigned char)action;
	while (*at == ' ') {
		if (++n > script_bytes[action])
			return -EINVAL;
		bytes[n] = (unsigned char)strtoul(at, &end, 10);
		at = end;
	}
	if (*at != ';')
		return -EINVAL;
	*text = at + 1 + strspn(at + 1, " ");
	n = 1u + script_bytes[action];
	return fwrite(bytes, 1, n, f) == n ? 0 : -EIO;
}

static int write_script(const char *folder, const char *name, const char *text)
{
	char path[512];
	FILE *f;
	int r = 0;

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	f = fopen(path, "we");
	if (!f)
		return -errno;
	while (!r && *text)
		r = write_action(f, &text);
	return fclose(f) && !r ? -EIO : r;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fputs("usage: request_corpus FOLDER\n", stderr);
		return 2;
	}
	for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
		int r = write_script(argv[1], scripts[i].name, scripts[i].text);

		if (r) {
			fprintf(stderr, "%s: %s\n", scripts[i].name, strerror(-r));
			return 1;
		}
	}
	return 0;
}
