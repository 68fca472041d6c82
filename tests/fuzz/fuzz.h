/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TESTS_FUZZ_H
#define KVHOST_TESTS_FUZZ_H

/*
 * fuzz: the entry point of a fuzz target. Owner: one thread. A finding is an abort.
 */

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
