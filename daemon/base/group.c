/* SPDX-License-Identifier: Apache-2.0 */
/* group: see group.h. At the start; may block. */
#include "daemon/base/group.h"

#include <errno.h>
#include <grp.h>
#include <unistd.h>

uint32_t group_find(const char *name)
{
	const struct group *g = getgrnam(name);

	return g ? (uint32_t)g->gr_gid : GROUP_NONE;
}

int group_give(const char *path, const char *name)
{
	uint32_t gid = group_find(name);

	if (gid == GROUP_NONE || chown(path, (uid_t)-1, gid) == 0 || errno == EPERM)
		return 0;
	return -errno;
}
