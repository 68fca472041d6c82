/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl: looks at the daemon of this host, and steers it.
 *
 * Reads the command line and leaves the rest to the ctl_ files. One thread.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/kvhost.h"
#include "shm/payload.h"
#include "tools/ctl.h"

#define STATS_FILE  "/run/kvhost/stats"
#define WORDS_MAX   3
#define WATCH_S     1
#define WATCH_S_MIN 0.01
#define WATCH_S_MAX 3600

static const char usage[] =
    "usage: kvctl [--socket PATH] [--stats FILE] COMMAND [--json]\n"
    "\n"
    "  health           the daemon's state, pools and warnings; without a daemon, what it left\n"
    "  stats            all counters, from the stats file: also of a daemon that hangs or is dead\n"
    "    --all            counters that are 0 too\n"
    "    --prometheus     in the text format of Prometheus\n"
    "    --watch [SECONDS]  again and again, with what changes a second, until interrupted\n"
    "  pools            pools, their plans and policies\n"
    "  tiers [NAME]     what lies in which tier and what moved; of one pool, or with --json of\n"
    "                   all, what its order has learned\n"
    "  pool drop NAME   give the memory of a pool back that no session has attached\n"
    "  drop NAMESPACE   give up the retained pages of a namespace; --all: of all of them\n"
    "  drain            take no new work; what is open goes on until it is closed\n"
    "    --undo           serve again\n"
    "  sessions         who is attached\n"
    "  config           every option, its value and where it came from\n"
    "  check            let the daemon walk all its objects and compare them with its sums\n"
    "  doctor           what this host lacks, and the commands that mend it\n"
    "\n"
    "  --socket PATH   default: $KVHOST_SOCKET, else /run/kvhost/kvhost.sock\n"
    "  --stats FILE    default: $KVHOST_STATS, else " STATS_FILE "\n"
    "  --json          the answer as JSON\n"
    "  --help, --version\n"
    "\n"
    "exit code: 0 well, 1 not well or failed, 2 wrong usage, 3 no daemon\n";

struct line { /* the command line */
	struct ctl_options options;
	const char *word[WORDS_MAX]; /* the command and what belongs to it */
	int n_words;
	bool done; /* --help or --version was answered */
};

static enum ctl_exit wrong(const char *what, const char *argument)
{
	fprintf(stderr, "kvctl: %s: %s\n%s", argument, what, usage);
	return CTL_USAGE;
}

static enum ctl_exit run_stats(const struct ctl_options *options)
{
	if (options->prometheus && (options->json || options->watch))
		return wrong("not with --json or --watch", "--prometheus");
	if (options->watch && options->json)
		return wrong("not with --json", "--watch");
	if (options->prometheus)
		return ctl_prometheus(options, stdout);
	if (options->watch)
		return ctl_watch(options, stdout);
	return ctl_stats(options, stdout);
}

static enum ctl_exit run_pool(const struct line *l)
{
	if (l->n_words < 2 || strcmp(l->word[1], "drop") != 0)
		return wrong("only \"pool drop NAME\" is known", "pool");
	if (l->n_words != 3 || !l->word[2][0])
		return wrong("names one pool", "pool drop");
	return ctl_ask(&l->options, "pool-drop", l->word[2], stdout);
}

static enum ctl_exit run_drop(const struct line *l)
{
	if (l->options.all != (l->n_words == 1) || (l->n_words == 2 && !l->word[1][0]) ||
	    l->n_words > 2)
		return wrong("names one namespace, or has --all", "drop");
	return ctl_ask(&l->options, "drop", l->options.all ? "" : l->word[1], stdout);
}

static enum ctl_exit run_tiers(const struct line *l)
{
	const char *pool = l->options.json ? PAYLOAD_ADMIN_WHOLE : "";

	if (l->n_words > 2 || (l->n_words == 2 && !l->word[1][0]))
		return wrong("names one pool, or none", "tiers");
	return ctl_ask(&l->options, "tiers", l->n_words == 2 ? l->word[1] : pool, stdout);
}

static enum ctl_exit run(const struct line *l)
{
	static const char *const questions[] = {"health", "pools", "sessions", "config", "check"};
	const struct ctl_options *options = &l->options;
	const char *command = l->word[0];

	if (strcmp(command, "stats") != 0 && (options->prometheus || options->watch))
		return wrong("only of stats", options->watch ? "--watch" : "--prometheus");
	if (strcmp(command, "drain") != 0 && options->undo)
		return wrong("only of drain", "--undo");
	if (!strcmp(command, "pool"))
		return run_pool(l);
	if (!strcmp(command, "drop"))
		return run_drop(l);
	if (!strcmp(command, "tiers"))
		return run_tiers(l);
	if (l->n_words > 1)
		return wrong("one command only", l->word[1]);
	if (!strcmp(command, "stats"))
		return run_stats(options);
	if (!strcmp(command, "drain"))
		return ctl_ask(options, options->undo ? "undrain" : "drain", NULL, stdout);
	if (!strcmp(command, "doctor"))
		return ctl_doctor(options, stdout);
	for (size_t i = 0; i < sizeof(questions) / sizeof(*questions); i++) {
		if (!strcmp(command, questions[i]))
			return ctl_ask(options, command, NULL, stdout);
	}
	return wrong("no such command", command);
}

/* A value behind '=' or in the next argument; NULL: `argument` is another flag or has none. */
static const char *flag_value(const char *argument, const char *name, char *const *argv, int *i)
{
	size_t length = strlen(name);

	if (strncmp(argument, name, length) != 0)
		return NULL;
	if (argument[length] == '=')
		return argument + length + 1;
	return argument[length] == 0 && argv[*i + 1] ? argv[++*i] : NULL;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Digits and a point alone. */
static bool read_seconds(const char *text, double *out)
{
	char *end;
	double seconds;

	if (!is_digit(text[0]) || text[strspn(text, "0123456789.")])
		return false;
	errno = 0;
	seconds = strtod(text, &end);
	if (errno || *end || seconds < WATCH_S_MIN || seconds > WATCH_S_MAX)
		return false;
	*out = seconds;
	return true;
}

/* The seconds are behind '=' or in the next argument, if that is a number. */
static bool take_watch(struct ctl_options *options, char *const *argv, int *i)
{
	const char *value = NULL;

	options->watch = true;
	options->watch_s = WATCH_S;
	if (argv[*i][strlen("--watch")] == '=')
		value = argv[*i] + strlen("--watch=");
	else if (argv[*i + 1] && is_digit(argv[*i + 1][0]))
		value = argv[++*i];
	return !value || read_seconds(value, &options->watch_s);
}

static enum ctl_exit take_flag(struct line *l, char *const *argv, int *i)
{
	const char *flag = argv[*i], *value;

	if (!strcmp(flag, "--help")) {
		fputs(usage, stdout);
		l->done = true;
	} else if (!strcmp(flag, "--version")) {
		printf("kvctl %s\n", PACKAGE_VERSION);
		l->done = true;
	} else if (!strcmp(flag, "--json")) {
		l->options.json = true;
	} else if (!strcmp(flag, "--all")) {
		l->options.all = true;
	} else if (!strcmp(flag, "--undo")) {
		l->options.undo = true;
	} else if (!strcmp(flag, "--prometheus")) {
		l->options.prometheus = true;
	} else if (!strcmp(flag, "--watch") || !strncmp(flag, "--watch=", strlen("--watch="))) {
		if (!take_watch(&l->options, argv, i))
			return wrong("accepted are 0.01 to 3600 seconds", argv[*i]);
	} else if ((value = flag_value(flag, "--socket", argv, i))) {
		l->options.socket = value;
	} else if ((value = flag_value(flag, "--stats", argv, i))) {
		l->options.stats = value;
	} else {
		return wrong("no such flag, or no value", flag);
	}
	return CTL_OK;
}

int main(int argc, char **argv)
{
	struct line l = {.options.stats = getenv("KVHOST_STATS")};
	enum ctl_exit result;

	for (int i = 1; i < argc && !l.done; i++) {
		if (argv[i][0] == '-') {
			result = take_flag(&l, argv, &i);
			if (result)
				return (int)result;
		} else if (l.n_words == WORDS_MAX) {
			return wrong("one command only", argv[i]);
		} else {
			l.word[l.n_words++] = argv[i];
		}
	}
	if (l.done)
		return CTL_OK;
	if (!l.n_words)
		return wrong("no command", "kvctl");
	if (!l.options.stats || !l.options.stats[0])
		l.options.stats = STATS_FILE;
	result = run(&l);
	if (fflush(stdout) != 0)
		return CTL_UNHEALTHY;
	return (int)result;
}
