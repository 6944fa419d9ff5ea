/*
 * Task probes [selectors.md B.2]: score(l) = accuracy of the teacher - its accuracy with layer l's mixer output set to zero, over
 * prompts that are made once. A probe is one file (kv.c, ar.c, ar_mh.c, vt_probe.c, cwe_probe.c): its generator, its rule for a right
 * answer, and RULER's task that asks the same question (variant `ruler`).
 *
 * Decoding is greedy, without a chat template, until an end token or max_new tokens; results do not depend on the batch.
 * Random draws: counter-based, f(seed, probe, draw number).
 */
#ifndef BASELINES_PROBE_H
#define BASELINES_PROBE_H

#include "baselines/selector.h"
#include "model/tok.h"
#include "ruler/gen.h"

/* Accuracy of the teacher below which a probe says nothing. */
#define PROBE_INFORMATIVE 0.20

struct probe;
struct probe_prompt {
    const struct probe *probe; /* whose rule judges it */
    bool ruler;                /* judged by RULER's measure instead: the share of references found */
    char *text;
    struct list refs;          /* right answers: the value; the sum; the X variables; the common words */
    struct list listed;        /* cwe: every word of the prompt */
    int32_t *ids, len, max_new;
};
struct probe_set {
    struct probe_prompt *v;
    size_t n, cap;
};
void probe_set_free(struct probe_set *s);

/* What generators draw from. */
struct probe_gen {
    uint64_t seed, stream, at; /* next draw */
    struct list words;         /* dictionary words (kv) */
    struct list keys;          /* tokenizer entries of three and more ASCII letters (ar, ar-mh) */
};
uint64_t probe_below(struct probe_gen *g, uint64_t n);
/* k distinct indices of 0..n-1 in random order. */
int probe_sample(struct probe_gen *g, size_t n, size_t k, size_t *out, struct err *e);

struct probe {
    const char *name;
    uint64_t stream;        /* of the random draws */
    bool words, keys;       /* lists that make needs */
    /* One prompt: text to p->text by *text, refs, listed. */
    int (*make)(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e);
    /* Share of the answer that is right, 0..1; text has n bytes and a NUL. */
    double (*right)(const struct probe_prompt *p, const char *text, size_t n);
    struct ruler_task ruler;
};
extern const struct probe probe_kv, probe_ar, probe_ar_mh, probe_vt, probe_cwe;
extern const struct probe probe_needle; /* one needle, RULER's form only (halo) */

/* Adds in->probe.prompts prompts of a probe, in the form asked for, with their ids. */
int probe_make(const struct probe *p, const struct select_input *in, struct probe_set *s, struct err *e);
/* in->out_dir/prompts.jsonl: {"probe", "form", "prompt", "answers"} a line. */
int probe_save(const struct probe_set *s, const char *dir, struct err *e);
/* Share right of each model or ablation: generates and judges. right (or NULL): one value a prompt. tokens +=. */
int probe_accuracy(struct model *m, const struct probe_set *s, const bool *ablate, int32_t batch, double *right, double *mean,
                   int64_t *tokens, struct err *e);

/*
 * One value for the teacher (layer -1) and each layer, computed by fn and kept in work_dir/layers.tsv as soon as it is there: an
 * interrupted selection goes on. When the teacher's value is below `least`, the layers are left out. tokens, flops: of this and earlier
 * attempts.
 */
struct per_layer {
    double base, value[MAX_LAYERS];
    int64_t tokens;
    double flops;
};
int per_layer_run(const struct select_input *in, double least, int (*fn)(void *ctx, int layer, double *value, int64_t *tokens,
                      struct err *e), void *ctx, struct per_layer *out, struct err *e);

/* The pick of a selector that is one probe. */
int probe_pick(const struct probe *p, const struct select_input *in, struct selection *out, struct err *e);
/* The same with prompts that are given. */
int probe_select(const struct select_input *in, const struct probe_set *set, struct selection *out, struct err *e);

/* Digits from p[i]; their end. */
size_t probe_digits_end(const char *p, size_t n, size_t i);

#endif
