/* Rows of the files that benchmarks come in: RFC 4180 tables and JSON objects. Private to lmeval. */
#ifndef LMEVAL_ROWS_H
#define LMEVAL_ROWS_H

#include "core/jread.h"
#include "core/str.h"

enum { CSV_MAX_FIELDS = 32 };
/* Fields (NUL-terminated, unquoted) of each record with the line it begins at; empty lines are passed over. A leading byte order mark is
 * dropped. */
int csv_each(const char *path, int (*fn)(void *ctx, int64_t line, const char *const *field, int n, struct err *e), void *ctx,
             struct err *e);
/*
 * Objects of a file: one a line, an array, or {"rows": [{"row": {..}}, ..]} as the hub's server gives them. d->root is the object, d->file
 * is "PATH:LINE" for messages (the row's number where the objects are not one a line).
 */
int json_each(const char *path, int (*fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e), void *ctx, struct err *e);

#endif
