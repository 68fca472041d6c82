/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_GROUP_H
#define KVHOST_BASE_GROUP_H

/*
 * group: user groups of this host by name, and files that belong to one. At the start, before any
 * thread; may block on the host's database of groups.
 */

#include <stdbool.h>
#include <stdint.h>

#define GROUP_CONNECT "kvhost"       /* may connect */
#define GROUP_ADMIN   "kvhost-admin" /* may steer, and read the stats file */
#define GROUP_NONE    UINT32_MAX

uint32_t group_find(const char *name); /* GROUP_NONE: the host has none of this name */

/* Give a file to a group. A host without that group, or a user who may not, changes nothing: 0. */
int group_give(const char *path, const char *name);

#endif
