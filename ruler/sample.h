/* A generated or predicted folder, read back. */
#ifndef RULER_SAMPLE_H
#define RULER_SAMPLE_H

#include "core/jread.h"
#include "ruler/gen.h"

/* Calls fn for each line of a JSONL file (without its end) with its number from 0. *torn: the last line has no end or is no JSON; it is
 * then not passed on when allow_torn, else an error. *good: bytes of whole lines. */
typedef int (*line_fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e);
int jsonl_each(const char *path, bool allow_torn, size_t *good, line_fn fn, void *ctx, struct err *e);

/* The tasks of a comma list (NULL = all of the set) for which dir/TASK/file exists; a named one without it is E_INPUT, none at all too. */
int tasks_present(const struct task_set *s, const char *dir, const char *file, const char *tasks,
                  const struct ruler_task *out[RULER_MAX_TASKS], size_t *n, struct err *e);

/* How predictions of a task count: true = all when any reference is found, false = the share of references found. */
bool ruler_part(const struct ruler_task *t, const char *flavour);

/* The reference answer as the teacher writes it. */
int ruler_answer(const struct ruler_task *t, const char *prompt, const char *const *refs, size_t n, struct str *out, struct err *e);

/* Predictions of one task, added up. Zero but for t, s and part; s->name is set by score_begin. */
struct score_reader {
    const struct ruler_task *t;
    struct ruler_task_score *s;
    char (*sha)[65]; /* of the prompts, malloc'ed: the caller's */
    size_t cap;
    double nll; /* sum in nats, of `tokens` tokens */
    int64_t tokens;
    bool no_nll, part;
};
void score_begin(struct score_reader *r, const struct ruler_task *t, const char *flavour, struct ruler_task_score *s);
/* nll: nats of the answer's n_tokens tokens, NAN = not measured. */
int score_add(struct score_reader *r, const char *pred, size_t n, const char *const *refs, size_t n_refs, const char *sha, double nll,
              int64_t n_tokens, struct err *e);
/* Mean and standard error. No prediction is E_INPUT, naming `path`. */
int score_end(struct score_reader *r, const char *path, struct err *e);
/* Strings of a JSON array into refs; *n of them, 1 to MAX_REFS. `what` begins the message. */
int refs_of(const json_t *list, const char *what, const char *refs[MAX_REFS], size_t *n, struct err *e);

/*
 * Predictions in the references' own layouts: TASK.jsonl of NVIDIA's pred folders (also TASK-0.jsonl, ... of chunks),
 * samples_TASK_TIME.jsonl of lm-evaluation-harness; in dir, or in the only folder of it that has some. length: of harness files with
 * several lengths, 0 = they have one. sha[t] = prompt hashes of task t, malloc'ed.
 */
int foreign_read(const char *dir, const char *flavour, int64_t length, struct ruler_scores *out, char (*sha[RULER_MAX_TASKS])[65],
                 struct err *e);

#endif
