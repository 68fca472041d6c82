/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SECRET_H
#define KVHOST_SECRET_H

/*
 * secret: random bytes in the state directory, made at the first start, readable by the daemon's
 * user alone: what keys the chain hash, and the salt of the default namespace. Read at the start,
 * before any thread; may block on the file.
 */

#include <stddef.h>
#include <stdint.h>

#define SECRET_KEY  "secret"
#define SECRET_SALT "salt"

/* Read the file `name` of the directory, or make it. 0 or -errno; -EINVAL: the file has another
 * length, or others may read or write it. *wrong is what a message should name, "" = the directory
 * itself. */
int secret_load(const char *directory, const char *name, uint8_t *out, size_t bytes,
		const char **wrong);

#endif
