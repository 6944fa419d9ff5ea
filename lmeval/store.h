/*
 * OUT/loglikelihoods.jsonl: the value of every request, appended as it is known, so that a run that was killed goes on. First line: the
 * run's key. When all is done the file is rewritten in the order of requests. Private to lmeval.
 */
#ifndef LMEVAL_STORE_H
#define LMEVAL_STORE_H

#include "lmeval/lmeval.h"

struct lme_record;
struct lme_store {
    char path[1100], lock[1100], key[65];
    struct lme_record *rec; /* what was there, sorted */
    size_t n, cap;
    struct str all; /* the file's final text */
    bool locked;
};
/* Takes the folder's lock. A file with another key is E_USAGE unless force, then it, results.json and samples are removed. A torn last
 * line is cut off. */
int store_open(struct lme_store *s, const char *dir, const char *key, bool force, struct err *e);
/* Marks the requests that are known. A record of other ids is E_INPUT. */
int store_fill(const struct lme_store *s, const struct lme_task *t, struct lme_set *set, struct err *e);
int store_add(struct lme_store *s, const struct lme_task *t, const struct lme_set *set, const int32_t *doc_of, const int64_t *req,
              int64_t n, struct err *e);
int store_keep(struct lme_store *s, const struct lme_task *t, const struct lme_set *set, struct err *e); /* the task is complete */
int store_commit(struct lme_store *s, struct err *e);
void store_close(struct lme_store *s);

#endif
