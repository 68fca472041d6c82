/* SPDX-License-Identifier: Apache-2.0 */

/* Tests of daemon/base/list.h. One thread; nothing blocks. */

#include "daemon/base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct item {
	int value;
	struct list link;
};

static int value_of(struct list *link)
{
	return list_entry(link, struct item, link)->value;
}

static void append_keeps_the_order_and_prepend_goes_first(void **state)
{
	struct item items[3] = {{.value = 0}, {.value = 1}, {.value = 2}};
	const int expected[] = {2, 0, 1};
	struct list head;
	int n = 0;

	(void)state;
	list_init(&head);
	assert_true(list_is_empty(&head));
	list_append(&head, &items[0].link);
	list_append(&head, &items[1].link);
	list_prepend(&head, &items[2].link);

	assert_false(list_is_empty(&head));
	list_for_each(link, following, &head) assert_int_equal(value_of(link), expected[n++]);
	assert_int_equal(n, 3);
	assert_ptr_equal(list_first(&head), &items[2].link);
}

static void what_is_appended_leaves_the_other_list(void **state)
{
	struct item items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
	struct list head, other;
	int n = 0;

	(void)state;
	list_init(&head);
	list_init(&other);
	list_append_all(&head, &other);
	assert_true(list_is_empty(&head));
	for (int i = 0; i < 4; i++)
		list_append(i < 2 ? &head : &other, &items[i].link);
	list_append_all(&head, &other);
	assert_true(list_is_empty(&other));
	list_for_each(link, following, &head) assert_int_equal(value_of(link), n++);
	assert_int_equal(n, 4);
	list_append_all(&other, &head);
	assert_true(list_is_empty(&head));
	assert_int_equal(value_of(other.previous), 3);
	assert_ptr_equal(list_first(&other), &items[0].link);
}

static void the_body_of_a_walk_may_remove_the_current_entry(void **state)
{
	struct item items[4];
	struct list head;
	int seen = 0;

	(void)state;
	list_init(&head);
	for (int i = 0; i < 4; i++) {
		items[i].value = i;
		list_append(&head, &items[i].link);
	}
	list_for_each(link, following, &head)
	{
		seen++;
		if (value_of(link) % 2 == 0)
			list_remove(link);
	}
	assert_int_equal(seen, 4);
	assert_int_equal(value_of(head.next), 1);
	assert_int_equal(value_of(head.previous), 3);
	assert_ptr_equal(items[1].link.next, &items[3].link);
	assert_ptr_equal(items[3].link.previous, &items[1].link);
}

static void removing_twice_is_harmless(void **state)
{
	struct item a = {.value = 1}, b = {.value = 2};
	struct list head;

	(void)state;
	list_init(&head);
	list_append(&head, &a.link);
	list_append(&head, &b.link);
	list_remove(&a.link);
	list_remove(&a.link);
	assert_ptr_equal(list_first(&head), &b.link);
	list_remove(&b.link);
	list_remove(&a.link); /* a still knew b once: it must not bring it back */
	assert_null(list_first(&head));
	assert_true(list_is_empty(&head));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(append_keeps_the_order_and_prepend_goes_first),
	    cmocka_unit_test(what_is_appended_leaves_the_other_list),
	    cmocka_unit_test(the_body_of_a_walk_may_remove_the_current_entry),
	    cmocka_unit_test(removing_twice_is_harmless),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
