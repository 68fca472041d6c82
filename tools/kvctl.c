/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl: looks at the daemon of this host.
 *
 * Reads the command line and leaves the rest to ctl_stats and ctl_ask. One thread.
 */

#include <stdlib.h>
#include <string.h>

#include "libclient/kvhost.h"
#include "tools/ctl.h"

#define STATS_FILE "/run/kvhost/stats"

static const char usage[] =
    "usage: kvctl [--socket PATH] [--stats FILE] COMMAND [--json]\n"
    "\n"
    "  health     the daemon's state, pools and warnings; without a daemon, what it left behind\n"
    "  stats      all counters, from the stats file: also of a daemon that hangs or is dead\n"
    "  pools      pools, their plans and policies\n"
    "  sessions   who is attached\n"
    "  config     every option, its value and where it came from\n"
    "  check      let the daemon walk all its objects and compare them with its sums\n"
    "\n"
    "  --socket PATH   default: $KVHOST_SOCKET, else /run/kvhost/kvhost.sock\n"
    "  --stats FILE    default: $KVHOST_STATS, else " STATS_FILE "\n"
    "  --all           stats: counters that are 0 too\n"
    "  --json          the answer as JSON\n"
    "  --help, --version\n"
    "\n"
    "exit code: 0 well, 1 not well or failed, 2 wrong usage, 3 no daemon\n";

static const char *const questions[] = {"health", "pools", "sessions", "config", "check"};

static enum ctl_exit wrong(const char *what, const char *argument)
{
	fprintf(stderr, "kvctl: %s: %s\n%s", argument, what, usage);
	return CTL_USAGE;
}

static enum ctl_exit run(const struct ctl_options *options, const char *command)
{
	if (!strcmp(command, "stats"))
		return ctl_stats(options, stdout);
	for (size_t i = 0; i < sizeof(questions) / sizeof(*questions); i++) {
		if (!strcmp(command, questions[i]))
			return ctl_ask(options, command, stdout);
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

int main(int argc, char **argv)
{
	struct ctl_options options = {.stats = getenv("KVHOST_STATS")};
	const char *command = NULL, *value;
	enum ctl_exit result;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			fputs(usage, stdout);
			return CTL_OK;
		} else if (!strcmp(argv[i], "--version")) {
			printf("kvctl %d.%d\n", KVHOST_VERSION_MAJOR, KVHOST_VERSION_MINOR);
			return CTL_OK;
		} else if (!strcmp(argv[i], "--json")) {
			options.json = true;
		} else if (!strcmp(argv[i], "--all")) {
			options.all = true;
		} else if ((value = flag_value(argv[i], "--socket", argv, &i))) {
			options.socket = value;
		} else if ((value = flag_value(argv[i], "--stats", argv, &i))) {
			options.stats = value;
		} else if (argv[i][0] == '-') {
			return wrong("no such flag, or no value", argv[i]);
		} else if (command) {
			return wrong("one command only", argv[i]);
		} else {
			command = argv[i];
		}
	}
	if (!command)
		return wrong("no command", "kvctl");
	if (!options.stats || !options.stats[0])
		options.stats = STATS_FILE;
	result = run(&options, command);
	if (fflush(stdout) != 0)
		return CTL_UNHEALTHY;
	return (int)result;
}
