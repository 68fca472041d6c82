/* SPDX-License-Identifier: Apache-2.0 */

/* text: see text.h. The writer's thread owns its counter; nothing blocks. */

#include "shm/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define TEXT_BYTES_MAX sizeof(((struct control_text *)0)->text)
#define COUNT_MASK     0x7fffffffu

void text_writer_init(struct text_writer *w, struct control_text *slots)
{
	assert(slots);
	*w = (struct text_writer){.slots = slots};
}

struct text_name text_write(struct text_writer *w, const char *text)
{
	struct control_text *slot;
	uint32_t length = (uint32_t)strnlen(text, TEXT_BYTES_MAX);
	uint32_t index, serial;

	w->count = (w->count + 1) & COUNT_MASK;
	if (w->count == 0)
		w->count = CONTROL_TEXTS; /* a serial of 0 is that of a slot never written */
	index = w->count % CONTROL_TEXTS;
	serial = 2 * w->count;
	slot = &w->slots[index];

	/* Each release store below keeps this one before it; partner: the second load of the
	 * serial in text_read, after its acquire loads. */
	atomic_store_explicit(&slot->serial, serial - 1, memory_order_relaxed);
	__atomic_store_n(&slot->length, length, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < length; i++)
		__atomic_store_n(&slot->text[i], text[i], __ATOMIC_RELEASE);
	/* Release pairs with the first load of the serial in text_read. */
	atomic_store_explicit(&slot->serial, serial, memory_order_release);

	return (struct text_name){.serial = serial, .text = (uint8_t)(1 + index)};
}

int text_read(const struct control_text *slots, struct text_name name, char out[CONTROL_TEXT_BYTES])
{
	char copy[CONTROL_TEXT_BYTES];
	const struct control_text *slot;
	uint32_t length;

	if (name.text < 1 || name.text > CONTROL_TEXTS)
		return -EPROTO;
	slot = &slots[name.text - 1];

	/* Acquire pairs with the last store of text_write. */
	if (atomic_load_explicit(&slot->serial, memory_order_acquire) != name.serial)
		return TEXT_GONE;
	/* Acquire pairs with the release stores of a later text_write: who reads anything of a
	 * later text also reads its odd serial below. */
	length = __atomic_load_n(&slot->length, __ATOMIC_ACQUIRE);
	if (length <= TEXT_BYTES_MAX) {
		for (uint32_t i = 0; i < length; i++)
			copy[i] = __atomic_load_n(&slot->text[i], __ATOMIC_ACQUIRE);
	}
	if (atomic_load_explicit(&slot->serial, memory_order_relaxed) != name.serial)
		return TEXT_GONE;
	if (length > TEXT_BYTES_MAX)
		return -EPROTO;

	text_clean(copy, length);
	memcpy(out, copy, length);
	out[length] = '\0';
	return 0;
}

void text_clean(char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c < 0x20 || c == 0x7f) {
			text[i] = '?';
		} else if (c == 0xc2 && i + 1 < bytes) {
			unsigned char next = (unsigned char)text[i + 1];

			/* U+0080 to U+009F: some terminals obey these as well. */
			if (next >= 0x80 && next <= 0x9f) {
				text[i] = '?';
				text[i + 1] = '?';
			}
		}
	}
}
