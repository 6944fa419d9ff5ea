/*
 * A model on a backend: configuration, parameters, layers. Every layer has an attention mixer, a linear mixer, or both; `ops` says which
 * operators run (one: a plain layer; two or three: the search mixture with the scalars p). Weights are shared between models by reference
 * count (param.h); close models in any order, all before their backend. Errors: E_INPUT (files), E_ENV (memory). Not thread-safe; several
 * models may be used from different threads if their backends differ.
 *
 * Order of use: model_open (teacher), linset_make or linset_load (linear mixers), model_assemble (supernet or hybrid); acts_open once; per
 * step batch_set, model_fwd, a head op on the hidden rows with model_head(m), model_bwd.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/batch.h"
#include "model/ffn.h"
#include "model/mixer.h"

struct tok;    /* tok.h */
struct ckfile; /* ckfile.h */

struct layer {
    struct param *norm1, *norm2;
    struct mixer *attn, *lin; /* NULL = the layer has none */
    struct ffn ffn;
    unsigned ops;          /* MIX_BIT set, never 0 */
    double p[MIX_N_KINDS]; /* weights of the operators in ops, by kind; not used when there is one */
    struct mixer mem_attn, mem_lin;
};
struct model {
    struct mcfg cfg; /* cfg.mixer[l], cfg.window[l] follow layers with one operator */
    struct backend *be;
    struct params params;              /* embedding, layers in order, final norm, head */
    struct param *embed, *norm, *head; /* head == embed when tied */
    struct layer *layer;               /* [L] */
    struct rope *rope;
    struct tok *tok; /* NULL without a tokenizer */
    bool borrows_tok;
    char path[1024];     /* "" when made in memory */
    char tok_path[1024]; /* where its tokenizer files are; "" = nowhere */
    char sha256[65];     /* of the weights; "" until model_hash */
};

struct model_open_opts {
    bool want_tokenizer;
    const char *tokenizer; /* path that overrides the model's own, or NULL */
    const char *pretok;    /* family name for an unknown vocab.json, or NULL */
    bool trainable;        /* parameters start trainable (else frozen) */
};
/* A Hugging Face folder, a .gguf file, or a hybrid written by model_save. */
int model_open(struct model **out, struct backend *be, const char *path, const struct model_open_opts *o, struct err *e);
/* Weights from init(ctx, param, host values out): random models for tests and training from scratch. NULL: as allocated, for a backend that
 * only counts. */
int model_new(struct model **out, struct backend *be, const struct mcfg *cfg,
              int (*init)(void *ctx, const struct param *p, float *w, struct err *e), void *ctx, struct err *e);
/* init for model_new: normal(0, std) matrices, norms 1, biases 0, GDN as fla; the same values with any number of threads. */
struct init_normal {
    uint64_t seed;
    double std;
    struct pool *pool; /* NULL: one thread */
};
int model_init_normal(void *ctx, const struct param *p, float *w, struct err *e);
void model_close(struct model *m);
/* Hash of the weights as in the checkpoint (ckfile_weights_sha256), cached in m->sha256. Models made in memory: E_USAGE. */
int model_hash(struct model *m, const char **hex, struct err *e);
/* Tables for positions 0..rows-1 at least; a longer table replaces a shorter one. model_fwd and caches call it. */
int model_need_pos(struct model *m, int64_t rows, struct err *e);
/* Given tables [rows, head_dim/2] instead of computed ones. */
int model_set_rope(struct model *m, const double *cos, const double *sin, int64_t rows, struct err *e);
/* Operators of a layer; each must have its mixer (E_USAGE). p NULL: uniform. window > 0 sets the window. */
int model_set_ops(struct model *m, int64_t layer, unsigned ops, const double *p, int64_t window, struct err *e);
static inline const struct param *model_head(const struct model *m)
{
    return m->head;
}

/* ---- linear mixers of all layers, alone (the result of Stage 1) ---- */
struct linset {
    struct backend *be;
    struct mcfg cfg;      /* of the all-linear student: cfg.gdn is the shape */
    struct params params; /* names "model.layers.N.self_attn.*", group PG_MIXER */
    struct mixer *mixer;  /* [L] */
    struct mixer_init init;
};
struct linset_opts {
    struct mixer_init init;
    bool conv, gate;                       /* short convolution of 4 taps; output gate (default of the papers: no, yes) */
    double norm_eps;                       /* 0 = 1e-6 */
    int64_t heads, head_k_dim, head_v_dim; /* 0 = the teacher's query heads and head_dim */
};
#define LINSET_OPTS                                                                                                                        \
    {                                                                                                                                      \
        .init = {.seed = 42, .kv_expand = KV_EXPAND_HEAD, .gate_scale = 1, .a_scale = 1}, .conv = false, .gate = true, .norm_eps = 1e-6    \
    }
/* GDN mixers of every layer, initialised from the teacher's attention [selectors.md A.2, A.3]. */
int linset_make(struct linset **out, const struct model *teacher, const struct linset_opts *o, struct err *e);
/* A folder written by linset_save (mixers.safetensors with fla's names, config.json), or any hybrid's folder in which every layer is
 * linear. */
int linset_load(struct linset **out, struct backend *be, const char *dir, struct err *e);
int linset_save(const struct linset *s, const char *dir, const char *dtype,
                struct err *e); /* dtype "float32" or "bfloat16"; A_log, dt_bias always float32 */
void linset_close(struct linset *s);
int linset_alike(const struct linset *s, const struct mcfg *teacher, struct err *e); /* E_INPUT when the mixers do not fit this teacher */

/* ---- hybrids ---- */
struct assemble_opts {
    const unsigned *ops; /* [L] MIX_BIT sets; the layer gets a mixer for every bit */
    int64_t window;      /* for MIX_WINDOW */
    bool copy;           /* own weights (trainable); false: the teacher's and the set's memory, frozen */
};
/* lin may be NULL when no layer uses it. */
int model_assemble(struct model **out, const struct model *teacher, const struct linset *lin, const struct assemble_opts *o, struct err *e);
/* Folder in fla's layout (a model without linear layers: its own Hugging Face layout), config.json with `dashlab`, tokenizer files copied
   from m's source folder. Every layer must have one operator. meta: run key (or NULL). */
int model_save(const struct model *m, const char *dir, const char *dtype, const char *run_key, struct err *e);

/* ---- activations ---- */
struct layer_save {
    struct view x, u; /* residual stream before the mixer, before the FFN */
    struct view rstd1, rstd2;
    struct mixer_save attn, lin;
    struct ffn_save ffn;
};
struct acts {
    struct dmem keep, tmp;
    int64_t max_rows;
    int32_t max_seqs;
    struct layer_save *layer; /* [L] */
    int64_t L;
    struct view x_last, rstd_last, hidden;
    bool saved;    /* the last forward kept what a backward needs */
    bool recompute; /* ... of a layer its input alone: the backward runs the layer again, the same ops on the same numbers */
    int64_t first; /* layer it began at */
};
struct acts_opts {
    int64_t rows;
    int32_t seqs;
    bool train; /* forward with saving and backward; else forward (and decoding) only */
    bool wgrad; /* backward also computes parameter gradients */
    /* train: of a layer only its input is kept, the rest is computed again in the backward. Memory of L layers becomes that of one; results
       have the same bits, and the second computing is not counted in be->flops (which are the model's FLOPs). */
    bool recompute;
};
/* Bytes by running the model's own code against measuring arenas, with the operators set now: plan with the largest sets that will be used.
 */
int acts_plan(const struct model *m, const struct acts_opts *o, size_t *keep_bytes, size_t *tmp_bytes, struct err *e);
int acts_open(struct acts *a, const struct model *m, const struct acts_opts *o, struct err *e);
void acts_close(struct acts *a);

/* ---- forward and backward ---- */
struct fwd_opts {
    bool save;          /* model_bwd may follow */
    const bool *ablate; /* [L] or NULL: these layers' mixer outputs are zero */
    int64_t first;      /* begin at this layer with x0 as its input stream (x0 absent: 0 and the embedding) */
    struct view x0;
    void *ctx;
    /* after layer l's mixer: its normed input and its output, [R,D], valid during the call */
    void (*on_mixer)(void *ctx, int64_t l, struct view h, struct view y);
    /* residual stream: i = 0 the embedding, i = l+1 after layer l; [R,D], valid during the call */
    void (*on_stream)(void *ctx, int64_t i, struct view x);
};
/* Final-normed hidden rows [R,D] in *hidden, valid until the next forward on these acts. o NULL: plain inference. */
int model_fwd(struct model *m, struct acts *a, const struct batch *b, const struct fwd_opts *o, struct view *hidden, struct err *e);
struct bwd_opts {
    bool wgrad;     /* += into g of trainable parameters */
    struct view dp; /* stat [L, MIX_N_KINDS] +=, or absent */
    void *ctx;
    /* Gradient at the output of layer l's mixer, in addition to what flows back: return true after writing it to dy [R,D]. */
    bool (*inject)(void *ctx, int64_t l, struct view dy);
};
/* dhidden [R,D]: gradient at *hidden (absent: zero). Stops at the lowest layer that has something to learn. The embedding's gradient (input
 * side) is included. */
int model_bwd(struct model *m, struct acts *a, const struct batch *b, struct view dhidden, const struct bwd_opts *o, struct err *e);

/* FLOPs of one forward (and backward with what `o` asks) over n sequences of T tokens without the head; head: 2 N d a row and use. Counted
 * by the ops' own cost functions. */
int model_flops(const struct model *m, int32_t n, int64_t T, bool backward, bool wgrad, double *flops, struct err *e);

#endif
