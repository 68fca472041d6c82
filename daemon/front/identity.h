/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_FRONT_IDENTITY_H
#define KVHOST_FRONT_IDENTITY_H

/*
 * identity: who connected, by the kernel's word, and which namespace that user may use.
 *
 * What a client says only chooses among the namespaces that its user or one of its groups may use;
 * a name that does not exist and one that it may not use are the same to it. Whom the kernel cannot
 * name (65534) matches nothing. Root may use every namespace, and steer. Members of the operators'
 * group may steer; in a namespace that is not theirs they may do nothing else.
 * Owner: the core thread; nothing blocks.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"

struct identity {
	uint32_t pid, uid;
	uint32_t n_gids;
	uint32_t *gids; /* the first one and the supplementary ones, when it connected */
};

struct identity_card {
	uint16_t name_space;
	uint32_t rights; /* enum config_right */
};

/* Of the peer of a socket. 0 or -errno. */
int identity_of(int socket, struct identity *out);
void identity_free(struct identity *who);

/* wanted "": the first namespace of its own. admin_gid: the operators' group, GROUP_NONE: none.
 * false: there is none for it. */
bool identity_admit(const struct config *c, const struct identity *who, const char *wanted,
		    uint32_t admin_gid, struct identity_card *out);

#endif
