/*
 * What every KL-based step shares: batches of shard rows, the teacher's final hidden rows (computed, or read from a cache that was made
 * once for all searches and distillations), and the KL between a student and the teacher with its gradient.
 */
#ifndef DASH_STREAM_H
#define DASH_STREAM_H

#include "model/cache.h"
#include "model/data.h"
#include "model/model.h"

enum positions { POS_ALL, POS_ANSWERS /* positions whose next token belongs to an answer */ };

/* Cache of the teacher's final-normed hidden rows: DIR/hidden.f32 [rows, seq, D], DIR/hidden.json (shard and teacher hashes). */
struct hcache {
    struct file_map map;
    int64_t rows, seq, dim;
};
int hcache_make(const char *dir, struct model *teacher, const struct shard *s, int64_t micro, struct err *e);
int hcache_open(struct hcache *h, const char *dir, const struct shard *s, const struct model *teacher, struct err *e);
void hcache_close(struct hcache *h);

struct stream {
    struct backend *be;
    const struct shard *shard;
    struct model *teacher;
    const struct hcache *cache; /* NULL: the teacher runs */
    struct acts t_acts;         /* of the teacher, opened only without a cache */
    struct batch batch;
    struct view t_hidden;       /* act [max_rows, D] */
    struct view w, kl, dh;      /* stat [max_rows] x2, act [max_rows, D] */
    float *host;                /* [max_rows, D] staging, also weights */
    double *host_kl;            /* [max_rows] */
    int64_t max_rows;
    double tau;
    double fwd_tokens, teacher_tokens; /* counted */
    // of the teacher, the KL's value, and the models that stream_eval runs; callers add their own forwards
    double flops_forward;
};
/* For up to `micro` rows of the shard at a time. */
int stream_open(struct stream *s, struct backend *be, const struct shard *shard, struct model *teacher, const struct hcache *cache,
                int64_t micro, double tau, struct err *e);
void stream_close(struct stream *s);
/* Whether position t of a row counts under a rule; how many of a row do. */
bool stream_counts(const struct shard *s, int64_t row, int64_t t, enum positions pos);
double stream_weight(const struct shard *s, int64_t row, enum positions pos);
/* Sets the batch to these rows and the teacher's hidden rows. */
int stream_set(struct stream *s, const int64_t *rows, int n, struct err *e);

struct kl_sums {
    double all, answers;        /* sums of KL, nats */
    double n_all, n_answers;
};
/*
 * KL(teacher || student) at the rows set, for the student's hidden rows; sums over all and over answer positions. grad: dh = gradient of
 * scale * sum over `pos` positions, and += into the head's g when head_grad.
 */
int stream_kl(struct stream *s, const struct model *student, struct view hidden, enum positions pos, bool grad, bool head_grad,
              double scale, struct kl_sums *out, struct err *e);
/* Held-out KL of a model over rows lo..hi-1: adds to *out. */
int stream_eval(struct stream *s, struct model *student, struct acts *acts, int64_t lo, int64_t hi, int64_t micro, struct kl_sums *out,
                struct err *e);

#endif
