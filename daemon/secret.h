/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_SECRET_H
#define KVHOST_SECRET_H

/*
 * secret: what keys the chain hash: random bytes in the state directory, made at the first start,
 * readable by the daemon's user alone. Read at the start, before any thread; may block on the file.
 */

#include <stddef.h>
#include <stdint.h>

/* 0 or -errno; -EINVAL: the file has another length, or others may read or write it. *path is
 * what the message should name, "" = the directory itself. */
int secret_load(const char *directory, uint8_t *out, size_t bytes, const char **name);

#endif
