/* A generated or predicted folder, read back. */
#ifndef RULER_SAMPLE_H
#define RULER_SAMPLE_H

#include "core/jread.h"
#include "ruler/gen.h"

/* Calls fn for each line of a JSONL file (without its end) with its number from 0. *torn: the last line has no end or is no JSON; it is
 * then not passed on when allow_torn, else an error. *good: bytes of whole lines. */
typedef int (*line_fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e);
int jsonl_each(const char *path, bool allow_torn, size_t *good, line_fn fn, void *ctx, struct err *e);

/* The tasks of a comma list (NULL = all) for which dir/TASK/file exists; a named one without it is E_INPUT, none at all too. */
int tasks_present(const char *dir, const char *file, const char *tasks, const struct ruler_task *out[RULER_MAX_TASKS], size_t *n,
                  struct err *e);

/* How predictions of a task count: true = all when any reference is found, false = the share of references found. */
bool ruler_part(const struct ruler_task *t, const char *flavour);

/* The reference answer as the teacher writes it. */
int ruler_answer(const struct ruler_task *t, const char *prompt, const char *const *refs, size_t n, struct str *out, struct err *e);

#endif
