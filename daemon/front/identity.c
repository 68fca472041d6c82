/* SPDX-License-Identifier: Apache-2.0 */
/* identity: see identity.h. Core thread; nothing here blocks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "daemon/front/identity.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/group.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define GROUPS_MAX 65536 /* of a process, the kernel's limit */

int identity_of(int socket, struct identity *out)
{
	struct ucred who;
	socklen_t size = sizeof(who), bytes = 0;
	uint32_t *gids, *fitted;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size))
		return -errno;
	/* With no room it says how much is needed. The groups of a peer never change. */
	if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) && errno != ERANGE)
		bytes = 0;
	if (bytes > GROUPS_MAX * sizeof(*gids))
		return -EPROTO;
	gids = malloc(bytes + sizeof(*gids));
	if (!gids)
		return -ENOMEM;
	if (bytes && getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, gids + 1, &bytes))
		bytes = 0;
	gids[0] = who.gid;
	fitted = realloc(gids, bytes + sizeof(*gids));
	*out = (struct identity){.pid = (uint32_t)who.pid,
				 .uid = who.uid,
				 .n_gids = 1 + bytes / (uint32_t)sizeof(*gids),
				 .gids = fitted ? fitted : gids};
	return 0;
}

void identity_free(struct identity *who)
{
	free(who->gids);
	*who = (struct identity){0};
}

static bool has(const struct config_ids *ids, uint32_t id)
{
	for (uint32_t i = 0; i < ids->n; i++) {
		if (ids->id[i] == id)
			return true;
	}
	return false;
}

static bool is_member(const struct config_namespace *n, const struct identity *who)
{
	if (has(&n->uids, who->uid))
		return true;
	for (uint32_t i = 0; i < who->n_gids; i++) {
		if (who->gids[i] != CONFIG_ID_NOBODY && has(&n->gids, who->gids[i]))
			return true;
	}
	return false;
}

static bool is_operator(const struct identity *who, uint32_t admin_gid)
{
	for (uint32_t i = 0; i < who->n_gids && admin_gid != GROUP_NONE; i++) {
		if (who->gids[i] == admin_gid)
			return true;
	}
	return false;
}

bool identity_admit(const struct config *c, const struct identity *who, const char *wanted,
		    uint32_t admin_gid, struct identity_card *out)
{
	bool root = who->uid == 0, steers = root || is_operator(who, admin_gid);

	if (who->uid == CONFIG_ID_NOBODY)
		return false;
	/* Its own come first. */
	for (int others = 0; others <= steers; others++) {
		for (uint32_t i = 0; i < c->n_namespaces; i++) {
			const struct config_namespace *n = &c->namespaces[i];

			if (wanted[0] && strcmp(wanted, n->name) != 0)
				continue;
			if (!others && !is_member(n, who))
				continue;
			out->name_space = (uint16_t)i;
			out->rights = !others || root ? n->rights : 0;
			if (steers)
				out->rights |= CONFIG_RIGHT_ADMIN;
			return true;
		}
	}
	return false;
}
