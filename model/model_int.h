/* Between model.c, forward.c, assemble.c and cache.c alone. */
#ifndef MODEL_MODEL_INT_H
#define MODEL_MODEL_INT_H

#include "model/cache.h"
#include "model/model.h"

/* Where weights of a model under construction come from: nothing (zeroed), or a teacher and a set of linear mixers, copied or shared. */
struct build_from {
    const struct model *teacher;
    const struct linset *lin;
    bool copy;
};
/* Layers and parameters for m->cfg and ops[L]; m is zeroed but for cfg and be. */
int model_build(struct model *m, const unsigned *ops, const struct build_from *from, bool trainable, struct err *e);
/* Adds the parameters of a mixer to a list; prefix "model.layers.3.self_attn."; src: same shapes, shared or copied, or NULL. */
int mixer_build(struct mixer *x, const struct mixer_type *t, const struct mcfg *c, int64_t layer, const char *prefix, struct params *l,
                const struct mixer *src, bool copy, bool trainable, struct err *e);
int model_rope_make(struct rope **out, struct backend *be, const struct mcfg *c, int64_t rows, struct err *e);
void rope_drop(struct backend *be, struct rope *r);

/* Forward on any backend (the model's own, or one that only counts). cache NULL: plain. */
struct run {
    struct backend *be;
    struct model *m;
    struct acts *a;
    const struct batch *b;
    struct cache *cache;
    const struct cache_rows *rows;
    int32_t slot0;
};
void acts_reset(struct acts *a); /* before every forward */
void model_run_fwd(const struct run *r, const struct fwd_opts *o, struct view *hidden);
void model_run_bwd(const struct run *r, struct view dhidden, const struct bwd_opts *o);
/* Index arrays of one step from the cache's lengths; device memory from a, to live through the step (h: scratch on the host, kept by the
 * caller until the step is done). */
struct host_idx {
    int32_t *p;
    size_t n, cap;
};
int cache_plan_rows(struct cache_rows *out, const struct cache *c, int32_t slot0, const struct seqs *seqs, struct backend *be,
                    struct dmem *a, struct host_idx *h, struct err *e);

#endif
