/* Writing of result files. Private to lmeval. */
#ifndef LMEVAL_RESULTS_H
#define LMEVAL_RESULTS_H

#include "core/fs.h"
#include "core/hash.h"
#include "lmeval/lmeval.h"

/* Second pass over a scored task: hashes of its documents and, when out is set, samples. lme_sample is a callback of lme_each. */
struct lme_samples {
    const struct lme_task *task;
    const struct lme_set *set;
    unsigned metrics;
    double *score[LME_N_METRICS]; /* [n_docs] each */
    int64_t at;
    struct sha256 hash;
    struct file_out *out;
};
int lme_sample(void *ctx, const struct lme_case *c, struct err *e);

/* What results.json says about the run. */
struct lme_about {
    const char *model_name, *sanitized, *device, *system, *model_sha256, *key;
    const struct tok *tok;
    int64_t parameters, max_length;
    double limit, start, seconds; /* limit < 0: none; start: Unix time */
    uint64_t seed;
    bool bf16, chat, multiturn, dates, bundled;
};
int lme_write_results(const char *path, const struct lme_run_result *r, const struct lme_about *a, struct err *e);
/* The model's name as a folder; the date as the harness puts it into names. */
void lme_sanitize(const char *name, char out[256]);
void lme_date_name(double start, char out[48]);

#endif
