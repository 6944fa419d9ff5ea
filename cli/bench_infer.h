/*
 * Inference, timed: a batch of prompts of random ids is computed (prefill: every prompt, up to the logits of its last token), then
 * decoded greedily. For `dashlab bench infer` [DASH Appendix, Tables 11 to 13]. Models: a path, or a named shape with random weights;
 * hybrids of either by a layer spec (linear mixers as Stage 1 starts them).
 */
#ifndef CLI_BENCH_INFER_H
#define CLI_BENCH_INFER_H

#include "model/cache.h"
#include "model/model.h"

enum { INFER_MAX_REPS = 64 };
struct infer_opts {
    int64_t context, decode;  /* tokens of a prompt; tokens decoded after it */
    int32_t batch;
    int warmup, reps;
    int64_t piece;            /* most prompt tokens in one forward, one sequence after another; 0: all prompts of the batch in one */
    double limit_bytes;       /* device memory that may be used; 0 = what there is */
    uint64_t seed;
};
struct infer_time {
    double median, lo, hi;    /* seconds; lo, hi: quartiles */
};
struct infer_run {
    bool fits;                /* false: not tried, need_bytes is above the limit */
    double need_bytes;        /* predicted: weights, activations, cache */
    double limit_bytes;       /* the lower of what was asked for and what the device (or the machine) has; 0 = unknown */
    double weight_bytes, cache_bytes, prefill_peak, decode_peak;
    double prefill_flops;     /* counted, the whole batch */
    struct infer_time prefill, step; /* one prefill of the batch; one decoded token of every sequence */
};
/* Weights (what the backend holds now), cache and need_bytes, by the model's own code; no limit is looked at. */
int infer_need(const struct model *m, const struct infer_opts *o, struct infer_run *out, struct err *e);
int bench_infer(struct model *m, const struct infer_opts *o, struct infer_run *out, struct err *e);

/* "qwen2.5-0.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-4b", "llama-3.2-1b", "smollm2-135m": the shape's configuration; false for another
 * name. */
bool infer_shape(const char *name, struct mcfg *c);
/* A model by path, or by the name of a shape with random weights. */
int infer_model(struct model **m, struct backend *be, const char *path_or_shape, uint64_t seed, struct err *e);
const char *const *infer_shape_names(void);

int bench_cmd_infer(int argc, char **argv, struct err *e);

#endif
