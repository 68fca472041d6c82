/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_BASE_LIST_H
#define KVHOST_BASE_LIST_H

/*
 * list: intrusive doubly linked lists. A list is a head; a link that is in no list points at
 * itself, so removing it twice is harmless. Single-threaded.
 */

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next;
	struct list *previous;
};

#define list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* The body may remove the current entry, and no other. */
#define list_for_each(link, following, head)                                                       \
	for (struct list *link = (head)->next, *following = link->next; link != (head);            \
	     link = following, following = link->next)

static inline void list_init(struct list *l)
{
	l->next = l;
	l->previous = l;
}

static inline bool list_is_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_remove(struct list *l)
{
	l->next->previous = l->previous;
	l->previous->next = l->next;
	list_init(l);
}

static inline void list_append(struct list *head, struct list *l)
{
	l->previous = head->previous;
	l->next = head;
	head->previous->next = l;
	head->previous = l;
}

static inline void list_prepend(struct list *head, struct list *l)
{
	list_append(head->next, l);
}

/* What is in another list goes to the end of this one. */
static inline void list_append_all(struct list *head, struct list *from)
{
	if (list_is_empty(from))
		return;
	from->next->previous = head->previous;
	head->previous->next = from->next;
	from->previous->next = head;
	head->previous = from->previous;
	list_init(from);
}

static inline struct list *list_first(const struct list *head)
{
	return list_is_empty(head) ? NULL : head->next;
}

#endif
