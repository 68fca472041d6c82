/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVHOST_TOOLS_BENCH_REPORT_H
#define KVHOST_TOOLS_BENCH_REPORT_H

/*
 * report: one record a case, as a JSON object on a line or as rows of a table. Main thread.
 *
 * report_case begins a record, figures follow, and one of report_measured, report_failed and
 * report_unsupported ends and prints it. A figure's unit is the end of its JSON name.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct report;

struct report *report_new(bool json, FILE *out); /* NULL: no memory; out stays the caller's */
void report_free(struct report **r);             /* prints nothing */

void report_case(struct report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* unit "" = none */
void report_number(struct report *r, const char *name, const char *unit, double value);
void report_numbers(struct report *r, const char *name, const char *unit, const double *values,
		    size_t n);
void report_count(struct report *r, const char *name, const char *unit, uint64_t value);
void report_text(struct report *r, const char *name, const char *text); /* NULL prints as null */
void report_bar(struct report *r, double ratio, double limit);          /* met: ratio <= limit */
void report_bar_least(struct report *r, double ratio, double least);    /* met: ratio >= least */

void report_measured(struct report *r);
void report_failed(struct report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_unsupported(struct report *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint32_t report_failures(const struct report *r); /* failed cases so far */

#endif
