/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_PANIC_H
#define KVHOST_BASE_PANIC_H

/*
 * panic: assertions that stay on in production, and the one way to die.
 *
 * must: a rule of the program. cannot_happen: a branch that no state reaches. not_handled: a case
 * that is known and not built. All three write their text through the hook (the stats file) and
 * abort. Any thread.
 */

#define must(condition)                                                                            \
	((condition) ? (void)0 : panic_at(__FILE__, __LINE__, __func__, "must: " #condition))
#define cannot_happen(text) panic_at(__FILE__, __LINE__, __func__, "cannot happen: " text)
#define not_handled(text)   panic_at(__FILE__, __LINE__, __func__, "not handled: " text)

_Noreturn void panic_at(const char *file, int line, const char *function, const char *text);

/* Called once, before the abort, with the whole sentence. NULL: none. */
void panic_set_hook(void (*hook)(void *context, const char *text), void *context);

#endif
