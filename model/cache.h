/*
 * Decoding: states of sequences (full attention: keys and values of every position; window: a ring; GDN: the state matrix and the
 * convolutions' last inputs), greedy generation, log-probabilities. A cache has `slots` sequences of at most `capacity` tokens; capacity
 * grows by cache_reserve. On the CPU results of a sequence do not depend on which others are computed with it. Lengths are per sequence, so
 * there is no padding anywhere.
 */
#ifndef MODEL_CACHE_H
#define MODEL_CACHE_H

#include "model/model.h"

/* Where the new rows of one step go, shared by its layers (host indices uploaded once). */
struct ring_rows { /* windows of one size: slot s has rows s*window .. of the ring */
    int32_t window;
    bool single;      /* one new token in every sequence */
    struct seqs seqs; /* single: over the ring; else over the stretch "tail | new rows" of each sequence */
    int64_t line_rows, n_tail, n_put;
    struct view tail_di, tail_si, new_di; /* ring -> stretch; new row -> stretch */
    struct view put_di, put_si;           /* the last new rows -> ring */
};
#define CACHE_MAX_WINDOWS 4
struct cache_rows {
    struct seqs full; /* over the linear cache */
    struct view full_di;
    struct ring_rows ring[CACHE_MAX_WINDOWS];
    int n_ring;
};
const struct ring_rows *cache_ring(const struct cache_rows *r, int32_t window);

struct cache {
    const struct model *m;
    struct backend *be;
    int32_t slots;
    int64_t capacity;
    int64_t *len;                   /* [slots] tokens held */
    unsigned *ops;                  /* [L] operators it was made for */
    const bool *ablate;             /* [L] borrowed, or NULL: these layers' mixer outputs are zero */
    struct mixer_cache *attn, *lin; /* [L] */
    int64_t bytes;
};
int cache_open(struct cache **out, struct model *m, int32_t slots, int64_t capacity, struct err *e);
void cache_close(struct cache *c);
int cache_reserve(struct cache *c, int64_t capacity, struct err *e);
void cache_reset(struct cache *c, int32_t slot); /* empty sequence */
/* dst's slot becomes a copy of src's (the same or another cache of the same model and operators): forks a prefix. */
int cache_copy(struct cache *dst, int32_t dslot, const struct cache *src, int32_t sslot, struct err *e);
int64_t cache_bytes(const struct model *m, int32_t slots, int64_t capacity);

/*
 * Feeds the batch's sequences (i -> slot slot0 + i) to the model after what the cache holds; positions are the lengths, b->pos is ignored.
 * Hidden rows as model_fwd. Needs acts opened with train = false.
 */
int model_step(struct model *m, struct acts *a, struct cache *c, int32_t slot0, struct batch *b, struct view *hidden, struct err *e);

struct gen_opts {
    int32_t batch; /* sequences decoded together, >= 1 */
    int64_t max_new;
    const int32_t *max_new_each; /* [n] or NULL */
    const int64_t *stop;         /* ids that end a sequence (kept as its last id) */
    int n_stop;
    const bool *ablate;   /* [L] or NULL: these layers' mixer outputs are zero */
    int64_t prefill_rows; /* most prompt tokens in one forward; 0 = 2048 (longer prompts go in pieces of that) */
    /*
     * > 0: what prompts have in common is computed once, cut at multiples of so many tokens (n <= batch). On the CPU no bit of a result
     * changes when this and prefill_rows are multiples of GDN_CHUNK.
     */
    int64_t share;
    /*
     * With share: texts that begin with the prompts, full[i][full_len[i]], full_len > len: full_lp[i][t - len[i]] = log p(full[i][t] |
     * full[i][..t]). Their prompts are not computed again. Needs prompts of 2 * share + 2 tokens. NULL = not wanted.
     */
    const int32_t *const *full;
    const int32_t *full_len;
    double **full_lp;
    int64_t *computed; /* tokens of prompts that were computed are added; NULL = not wanted */
    void *ctx;
    void (*progress)(void *ctx, int32_t done, int32_t n, int64_t tokens);
};
/*
 * The cut for gen_opts.share with which no result of this model changes by a bit; 0 = there is none: other backends than the CPU's, and
 * window layers, whose sums over a window begin where a piece begins.
 */
int64_t gen_share_cut(const struct model *m);
/* Greedy continuation of n prompts. out[i] (caller's, room for max_new ids) and out_len[i]. Finished sequences make room for waiting ones.
 * Stops with E_INTERRUPTED. */
int gen_greedy(struct model *m, int32_t n, const int32_t *const *prompt, const int32_t *len, const struct gen_opts *o, int32_t **out,
               int32_t *out_len, struct err *e);

/*
 * lp[i][t] = log p(tok[i][t] | tok[i][0..t-1]) for t >= 1, lp[i][0] = 0. best[i][t] (optional) = argmax id at position t given
 * tok[i][0..t-1], t >= 1; best[i][len] too (so len+1 entries). Sequences are packed up to rows tokens a forward (0 = 2048; a longer
 * sequence goes alone and whole).
 */
int score_logprobs(struct model *m, int32_t n, const int32_t *const *tok, const int32_t *len, int64_t rows, double **lp, int32_t **best,
                   struct err *e);
/* Continuations of one prefix: lp[i][t] = log p(cont[i][t] | prefix, cont[i][0..t-1]), t >= 0; the prefix is computed once. greedy[i]
 * (optional): every id was the argmax. */
int score_continuations(struct model *m, const int32_t *prefix, int32_t prefix_len, int32_t n, const int32_t *const *cont,
                        const int32_t *len, double **lp, bool *greedy, struct err *e);
/* Full logits of `rows` hidden rows to the host, float64 [rows, N]. For tests and the last position. */
int model_logits(struct model *m, struct view hidden, int64_t rows, double *out, struct err *e);
struct top_id {
    int32_t id;
    double logit;
};
int model_topk(struct model *m, struct view hidden_row, int k, struct top_id *out, struct err *e);

#endif
