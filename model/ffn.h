/* Feed-forward blocks behind one struct, as mixers are. ffn_dense.c: y = W_down (silu(W_gate h) * (W_up h)) (+ biases). h, y [R, D]. */
#ifndef MODEL_FFN_H
#define MODEL_FFN_H

#include "model/mixer.h"

#define FFN_MAX_PARAMS 8
struct ffn {
    const struct ffn_type *type;
    int64_t layer, d, f;
    bool bias;
    struct param *p[FFN_MAX_PARAMS];
};
struct ffn_save {
    struct view v[4];
};
struct ffn_type {
    const char *name;
    int (*params)(const struct ffn *x, struct mixer_param out[FFN_MAX_PARAMS]);
    void (*fwd)(const struct mx *c, const struct ffn *x, struct view h, struct view y, bool add,
                struct ffn_save *sv); /* y =, += when add */
    /* h is asked for only with parameter gradients (absent otherwise). dh (=). */
    void (*bwd)(const struct mx *c, const struct ffn *x, struct view h, struct view dy, struct view dh, const struct ffn_save *sv);
};
extern const struct ffn_type ffn_dense;
bool ffn_wants(const struct ffn *x, bool wgrad); /* any parameter gradient */

#endif
