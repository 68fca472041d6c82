/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats: the daemon's counters from its file, also when it does not answer any more.
 *
 * Owned by the thread that uses the reader. Opens and reads a small file in memory; never waits
 * for the daemon.
 */
#include "libclient/kvhost.h"

#include <errno.h>
#include <stdlib.h>

#include "shm/statsfile.h"

#define DEFAULT_PATH "/run/kvhost/stats"

struct kvhost_stats {
	struct statsfile_reader reader;
	struct statsfile_snapshot snapshot;
};

static int result_of(int error)
{
	switch (error) {
	case 0:
		return 0;
	case -ENOENT:
		return KVHOST_ENOENT;
	case -EACCES:
	case -EPERM:
		return KVHOST_EPERM;
	case -ENOMEM:
		return KVHOST_ENOMEM;
	case -EPROTO:
		return KVHOST_EVERSION;
	default:
		return KVHOST_EIO;
	}
}

int kvhost_stats_open(const char *path, struct kvhost_stats **out)
{
	struct kvhost_stats *stats;
	int result;

	if (!out)
		return KVHOST_EINVAL;
	if (!path)
		path = secure_getenv("KVHOST_STATS");
	if (!path || path[0] == '\0')
		path = DEFAULT_PATH;
	stats = calloc(1, sizeof(*stats));
	if (!stats)
		return KVHOST_ENOMEM;
	result = result_of(statsfile_open(&stats->reader, path));
	if (result) {
		free(stats);
		return result;
	}
	result = kvhost_stats_refresh(stats);
	if (result) {
		kvhost_stats_close(&stats);
		return result;
	}
	*out = stats;
	return 0;
}

int kvhost_stats_refresh(struct kvhost_stats *stats)
{
	struct statsfile_snapshot fresh = {0};
	int result;

	if (!stats)
		return KVHOST_EINVAL;
	result = result_of(statsfile_read(&stats->reader, &fresh));
	if (result) {
		statsfile_snapshot_free(&fresh);
		return result;
	}
	statsfile_snapshot_free(&stats->snapshot);
	stats->snapshot = fresh;
	return 0;
}

uint32_t kvhost_stats_count(const struct kvhost_stats *stats)
{
	return stats ? stats->snapshot.n_counters : 0;
}

int kvhost_stats_get(const struct kvhost_stats *stats, uint32_t index, struct kvhost_stat *out)
{
	const struct statsfile_counter *c;
	const uint64_t *values;

	if (!stats || !out)
		return KVHOST_EINVAL;
	if (index >= stats->snapshot.n_counters)
		return KVHOST_ENOENT;
	c = &stats->snapshot.counters[index];
	values = &stats->snapshot.values[c->first];
	*out = (struct kvhost_stat){
	    .name = c->name,
	    .label = c->label,
	    .unit = c->unit,
	    .help = c->help,
	    .value = values[0],
	    .is_gauge = c->kind == STATSFILE_GAUGE,
	};
	if (c->kind == STATSFILE_HISTOGRAM) {
		out->value = 0;
		for (uint32_t i = 0; i < c->values; i++)
			out->value += values[i];
		out->buckets = values;
		out->n_buckets = c->values;
	}
	return 0;
}

int kvhost_stats_alive(const struct kvhost_stats *stats)
{
	return stats && stats->snapshot.alive ? 1 : 0;
}

void kvhost_stats_close(struct kvhost_stats **stats)
{
	if (!stats || !*stats)
		return;
	statsfile_snapshot_free(&(*stats)->snapshot);
	statsfile_reader_close(&(*stats)->reader);
	free(*stats);
	*stats = NULL;
}
