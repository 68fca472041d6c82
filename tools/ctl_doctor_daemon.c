/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_doctor_daemon: the daemon's side of `kvctl doctor`: does it answer, does it speak the same
 * protocol, who may reach its socket and files. One thread; asking waits for bounded times.
 */

#include "tools/ctl_doctor.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/kvhost.h"
#include "shm/text.h"

#define SOCKET_FILE "/run/kvhost/kvhost.sock"
#define STATE       "/var/lib/kvhost"
#define CONNECT_US  3000000
#define ANSWER_S    30
#define PATH_BYTES  512
/* Not everybody has it as a service. */
#define START   "systemctl start kvhostd  # or kvhostd with its flags, where it is no service"
#define RESTART "systemctl restart kvhostd  # or end it and start it again, where it is no service"

static int ask(struct kvhost *host, const char *question, json_t **out)
{
	char *answer = NULL;
	json_t *root = NULL;
	int r = kvhost_ask(host, question, NULL, &answer);

	if (r == 0)
		root = json_loads(answer, 0, NULL);
	free(answer);
	if (json_is_object(root)) {
		*out = root;
		return 0;
	}
	json_decref(root);
	return r ? r : KVHOST_EVIOLATION;
}

static void give_up(int number)
{
	static const char text[] = "kvctl: the daemon took the question and does not answer\n";

	(void)number;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(CTL_UNHEALTHY);
	_exit(CTL_UNHEALTHY);
}

void doctor_ask(struct doctor *d, const struct ctl_options *options)
{
	struct kvhost_options connect = {
	    .socket = options->socket, .client = "kvctl", .connect_timeout_us = CONNECT_US};
	struct kvhost *host = NULL;
	int r = kvhost_connect(&connect, &host);

	if (r) {
		const char *reason = kvhost_reason(NULL);

		d->refused = r;
		snprintf(d->unreachable, sizeof(d->unreachable), "%s",
			 reason[0] ? reason : kvhost_strerror(r));
		text_clean(d->unreachable, strlen(d->unreachable));
		return;
	}
	signal(SIGALRM, give_up);
	alarm(ANSWER_S);
	d->refused = ask(host, "health", &d->health);
	if (d->refused)
		snprintf(d->unreachable, sizeof(d->unreachable), "%s", kvhost_reason(host));
	else
		(void)ask(host, "config", &d->config);
	alarm(0);
	text_clean(d->unreachable, strlen(d->unreachable));
	kvhost_disconnect(&host);
}

/* The value of a key in the answer to "config"; NULL: there is none. */
static const json_t *config_value(const struct doctor *d, const char *key)
{
	const json_t *values = json_object_get(d->config, "values");
	json_t *row;
	size_t i;

	json_array_foreach(values, i, row)
	{
		const char *name = json_string_value(json_object_get(row, "key"));

		if (name && !strcmp(name, key))
			return json_object_get(row, "value");
	}
	return NULL;
}

/* A pool that is only declared has no memory yet. */
static bool has_memory(const struct doctor *d, const char *pool)
{
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(d->health, "pools"), i, row)
	{
		const char *name = json_string_value(json_object_get(row, "name"));
		const char *state = json_string_value(json_object_get(row, "state"));

		if (pool && name && !strcmp(name, pool))
			return !state || strcmp(state, "declared") != 0;
	}
	return false;
}

bool doctor_pool_bytes(const struct doctor *d, unsigned long long *out)
{
	bool known = d->config != NULL;
	const json_t *name;
	char key[64];

	*out = 0;
	for (unsigned i = 0;; i++) {
		json_int_t bytes;

		snprintf(key, sizeof(key), "pools[%u].name", i);
		name = config_value(d, key);
		if (!name)
			return known;
		if (has_memory(d, json_string_value(name)))
			continue;
		snprintf(key, sizeof(key), "pools[%u].pool_bytes", i);
		bytes = json_integer_value(config_value(d, key));
		if (bytes > 0)
			*out += (unsigned long long)bytes;
		else
			known = false;
	}
}

bool doctor_needs_huge(const struct doctor *d)
{
	return json_is_true(config_value(d, "core.require_hugepages"));
}

/* ---- KV-RAM ---- */

/* What health says it wants; if it is off, what it would be. */
static unsigned long long wanted_bytes(const struct doctor *d, const char *part, const char *key)
{
	const json_t *it = json_object_get(d->health, part);
	json_int_t bytes = json_integer_value(json_object_get(it, "wanted_bytes"));

	if (bytes <= 0)
		bytes = json_integer_value(config_value(d, key));
	return bytes > 0 ? (unsigned long long)bytes : 0;
}

unsigned long long doctor_locked_bytes(const struct doctor *d)
{
	if (!json_is_true(config_value(d, "kv_ram_lock")))
		return 0;
	return wanted_bytes(d, "kv_ram", "kv_ram_bytes") +
	       wanted_bytes(d, "staging", "kv_staging_bytes");
}

struct part { /* of what the daemon takes at its start */
	const char *in_health, *check, *key;
	const char *whole, *what_for;
};

static void check_part(struct doctor *d, const struct part *p)
{
	const json_t *it = json_object_get(d->health, p->in_health);
	const char *state = json_string_value(json_object_get(it, "state"));
	const char *note = json_string_value(json_object_get(it, "note"));
	json_int_t there = json_integer_value(json_object_get(it, "capacity_bytes"));
	json_int_t wanted = json_integer_value(json_object_get(it, "wanted_bytes"));
	char is[CTL_LINE_BYTES + 64], has[64], of[64];

	if (!state || !note)
		return; /* no daemon, or one that does not say */
	ctl_size_text((unsigned long long)there, has, sizeof(has));
	ctl_size_text((unsigned long long)wanted, of, sizeof(of));
	snprintf(is, sizeof(is), "%s of %s; %s", has, of, note);
	if (!strcmp(state, "on"))
		doctor_say(d, p->check, DOCTOR_OK, is, NULL, NULL);
	else if (!strcmp(state, "arriving"))
		doctor_say(d, p->check, DOCTOR_NOTE, is, NULL, NULL);
	else if (!strcmp(state, "partial"))
		doctor_say(d, p->check, DOCTOR_MEND, is, p->whole, RESTART);
	else if (json_integer_value(config_value(d, p->key)) == 0)
		doctor_say(d, p->check, DOCTOR_OK, note, NULL, NULL);
	else
		doctor_say(d, p->check, DOCTOR_NOTE, note, p->what_for, RESTART);
}

void doctor_check_ram(struct doctor *d)
{
	static const struct part ram = {
	    "kv_ram", "KV-RAM", "kv_ram_bytes", "all that kv_ram_bytes says",
	    "memory below the pools, if what leaves them is to be kept"};
	static const struct part staging = {
	    "staging", "staging", "kv_staging_bytes", "all that kv_staging_bytes says",
	    "memory for what goes between a disk and the devices, if there is to be a disk"};

	check_part(d, &ram);
	check_part(d, &staging);
}

/* ---- what mends a daemon that does not answer, or lacks a file ---- */

static bool is_absent(const struct doctor *d)
{
	return d->refused == KVHOST_EGONE;
}

static const char *mend_daemon(const struct doctor *d)
{
	switch (d->refused) {
	case KVHOST_EGONE:
		return START;
	case KVHOST_ESHUTDOWN:
		return "systemctl start kvhostd  # once it has ended";
	case KVHOST_EPERM:
		return "usermod -aG kvhost,kvhost-admin \"$USER\"  # then log in again";
	case KVHOST_EVERSION:
		return "systemctl restart kvhostd  # with kvctl and kvhostd of the same version";
	case KVHOST_EQUOTA:
		return "end sessions, or raise core.session_limit or max_sessions of the namespace "
		       "and systemctl restart kvhostd";
	default:
		return RESTART;
	}
}

static const char *runtime_directory(const struct doctor *d)
{
	return json_string_value(config_value(d, "runtime_directory"));
}

/* Its daemon has it elsewhere: where. */
static bool stats_are_elsewhere(const struct doctor *d, const struct ctl_options *options,
				char out[PATH_BYTES])
{
	const char *folder = runtime_directory(d);

	if (!folder)
		return false;
	snprintf(out, PATH_BYTES, "%s/stats", folder);
	return strcmp(out, options->stats) != 0;
}

static void mend_stats(const struct doctor *d, const struct ctl_options *options,
		       char out[PATH_BYTES + 64])
{
	char path[PATH_BYTES];

	if (stats_are_elsewhere(d, options, path))
		snprintf(out, PATH_BYTES + 64, "kvctl --stats %s doctor", path);
	else
		snprintf(out, PATH_BYTES + 64, "%s", mend_daemon(d));
}

/* ---- files ---- */

struct wanted { /* of a file; `most`: bits of the mode that it may have, `least`: must have */
	const char *check;
	const char *path;
	unsigned least, most;
	const char *group;   /* if there is one of this name; NULL: any */
	const char *missing; /* what mends it if there is none */
};

static void check_no_file(struct doctor *d, const struct wanted *w, int error)
{
	char is[PATH_BYTES + 64];

	snprintf(is, sizeof(is), "%s: %s", w->path, strerror(error));
	/* Who may not look into a private folder has no reason to worry. */
	if (error == EACCES)
		doctor_say(d, w->check, DOCTOR_NOTE, is,
			   "only root and the daemon's user may look at it", "sudo kvctl doctor");
	else
		doctor_say(d, w->check, d->health ? DOCTOR_MEND : DOCTOR_NOTE, is,
			   "made by the daemon or its unit when it starts", w->missing);
}

static void check_file(struct doctor *d, const struct wanted *w)
{
	const struct group *g = w->group ? getgrnam(w->group) : NULL;
	char is[PATH_BYTES + 64], needed[128], command[PATH_BYTES + 64];
	struct stat s;
	unsigned mode;

	if (stat(w->path, &s)) {
		check_no_file(d, w, errno);
		return;
	}
	mode = s.st_mode & 07777;
	snprintf(is, sizeof(is), "%s: mode %04o, user %u, group %u", w->path, mode,
		 (unsigned)s.st_uid, (unsigned)s.st_gid);
	if ((mode & w->least) != w->least || (mode & ~w->most)) {
		snprintf(needed, sizeof(needed), "at least mode %04o, at most %04o", w->least,
			 w->most);
		snprintf(command, sizeof(command), "chmod %04o %s", w->most, w->path);
		doctor_say(d, w->check, DOCTOR_MEND, is, needed, command);
	} else if (g && s.st_gid != g->gr_gid) {
		snprintf(needed, sizeof(needed), "the group %s, for users other than the daemon's",
			 w->group);
		snprintf(command, sizeof(command), "chgrp %s %s", w->group, w->path);
		doctor_say(d, w->check, DOCTOR_MEND, is, needed, command);
	} else {
		doctor_say(d, w->check, DOCTOR_OK, is, NULL, NULL);
	}
}

static void check_files(struct doctor *d, const struct ctl_options *options)
{
	const char *state = json_string_value(config_value(d, "state_directory"));
	const char *socket = options->socket ? options->socket : getenv("KVHOST_SOCKET");
	char folder[PATH_BYTES], stats[PATH_BYTES + 64];

	if (!socket || !socket[0])
		socket = SOCKET_FILE;
	snprintf(folder, sizeof(folder), "%s", options->stats);
	if (strrchr(folder, '/'))
		*strrchr(folder, '/') = 0;
	if (runtime_directory(d))
		snprintf(folder, sizeof(folder), "%s", runtime_directory(d));
	mend_stats(d, options, stats);

	const struct wanted files[] = {
	    {"runtime directory", folder[0] ? folder : "/", 0500, 0755, NULL, mend_daemon(d)},
	    {"socket", socket, 0600, 0666, "kvhost", mend_daemon(d)},
	    {"stats file", options->stats, 0400, 0644, "kvhost-admin", stats},
	    {"state directory", state ? state : STATE, 0700, 0700, NULL, mend_daemon(d)},
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		check_file(d, &files[i]);
}

static void check_group(struct doctor *d, const char *name, const char *what)
{
	const struct group *g = getgrnam(name);
	char check[64], is[128];

	snprintf(check, sizeof(check), "group %s", name);
	if (!g) {
		doctor_say(d, check, DOCTOR_MEND, "there is none", what,
			   "systemd-sysusers kvhost.conf");
		return;
	}
	snprintf(is, sizeof(is), "group %u", (unsigned)g->gr_gid);
	doctor_say(d, check, DOCTOR_OK, is, what, NULL);
}

/* ---- the daemon ---- */

static void check_answer(struct doctor *d)
{
	const char *state = json_string_value(json_object_get(d->health, "state"));
	const char *version = json_string_value(json_object_get(d->health, "version"));
	const json_t *warnings = json_object_get(d->health, "warnings");
	char is[CTL_LINE_BYTES + 64], mine[32];
	json_t *warning;
	size_t i;

	snprintf(mine, sizeof(mine), "%d.%d", KVHOST_VERSION_MAJOR, KVHOST_VERSION_MINOR);
	if (!d->health) {
		snprintf(is, sizeof(is), "no answer: %s", d->unreachable);
		doctor_say(d, "daemon", is_absent(d) ? DOCTOR_NOTE : DOCTOR_MEND, is,
			   "a daemon that runs and answers", mend_daemon(d));
		return;
	}
	snprintf(is, sizeof(is), "%s, version %s; this kvctl is %s and speaks its protocol",
		 state ? state : "?", version ? version : "?", PACKAGE_VERSION);
	if (!version || strncmp(version, mine, strlen(mine)) != 0)
		doctor_say(d, "daemon", DOCTOR_NOTE, is, "the same version of both", NULL);
	else if (!state || strcmp(state, "running") != 0)
		doctor_say(d, "daemon", DOCTOR_MEND, is, "running", "kvctl drain --undo");
	else
		doctor_say(d, "daemon", DOCTOR_OK, is, NULL, NULL);
	json_array_foreach(warnings, i, warning)
	{
		const char *text = json_string_value(warning);

		doctor_say(d, "daemon's warning", DOCTOR_NOTE, text ? text : "?", NULL, NULL);
	}
}

static void check_no_stats(struct doctor *d, const struct ctl_options *options, int error)
{
	char is[PATH_BYTES + 64], command[PATH_BYTES + 64];

	snprintf(is, sizeof(is), "%s: %s", options->stats, strerror(error));
	mend_stats(d, options, command);
	if (error == EACCES)
		doctor_say(d, "layout", DOCTOR_MEND, is,
			   "a stats file that this user may read (group kvhost-admin)",
			   "usermod -aG kvhost-admin \"$USER\"  # then log in again");
	else
		doctor_say(d, "layout", is_absent(d) ? DOCTOR_NOTE : DOCTOR_MEND, is,
			   "the stats file, which the daemon makes when it starts", command);
}

/* Of a daemon that lives: a drain is undone by who asked for it, all else is a fault. */
static const char *mend_state(const struct doctor *d, const char *sentence)
{
	if (strcmp(sentence, "draining") != 0)
		return RESTART;
	return d->health ? "kvctl drain --undo" : mend_daemon(d);
}

static void check_stats(struct doctor *d, const struct ctl_options *options)
{
	struct statsfile_snapshot s = {0};
	char sentence[CTL_LINE_BYTES], is[CTL_LINE_BYTES + 128];
	enum ctl_exit judged;
	int r = ctl_stats_read(options->stats, &s);

	if (r == -EPROTO) {
		doctor_say(d, "layout", DOCTOR_MEND,
			   "the stats file is not one that this kvctl can read",
			   "kvctl and the daemon of the same version", RESTART);
		return;
	}
	if (r) {
		check_no_stats(d, options, -r);
		return;
	}
	judged = ctl_stats_judge(&s, sentence);
	snprintf(is, sizeof(is), "stats file %" PRIu32 ".%" PRIu32 ", this kvctl reads %d.%d; %s",
		 s.head.major, s.head.minor, STATSFILE_MAJOR, STATSFILE_MINOR, sentence);
	if (judged == CTL_UNHEALTHY)
		doctor_say(d, "layout", DOCTOR_MEND, is, "a daemon that runs and moves",
			   mend_state(d, sentence));
	else
		doctor_say(d, "layout", judged == CTL_OK ? DOCTOR_OK : DOCTOR_NOTE, is, NULL, NULL);
	statsfile_snapshot_free(&s);
}

void doctor_check_daemon(struct doctor *d, const struct ctl_options *options)
{
	check_answer(d);
	check_stats(d, options);
	check_files(d, options);
	check_group(d, "kvhost", "its members may connect");
	check_group(d, "kvhost-admin", "its members may steer and read the stats file");
}
