/*
 * Model configuration: one value struct for every source. Read from config.json (transformers 4 and 5 forms of Qwen2/2.5, Qwen3, Llama
 * 3.x, SmolLM2), from GGUF metadata (llama, qwen2, qwen3), and from fla's gated_deltanet config with or without the key `dashlab`.
 * Unknown keys are ignored; a key that would change the computation in a way that is not implemented (activation, rope type, partial
 * rotary, mixture of experts...) is refused by name. Errors: E_INPUT.
 */
#ifndef MODEL_CFG_H
#define MODEL_CFG_H

#include "core/err.h"
#include "core/str.h"
#include "model/gguf.h"

#define MCFG_MAX_LAYERS 256
#define MCFG_MAX_HEAD_DIM 1024
#define MCFG_MAX_EOS 8
#define MCFG_DASHLAB_VERSION 1 /* of the `dashlab` object in config.json */

enum mcfg_arch { ARCH_QWEN2, ARCH_QWEN3, ARCH_LLAMA, ARCH_GATED_DELTANET /* a fla model that names no teacher family */ };
enum mcfg_layout { LAYOUT_HF, LAYOUT_FLA }; /* tensor names on disk */
enum mixer_kind { MIX_FULL, MIX_WINDOW, MIX_GDN };
#define MIX_N_KINDS 3
enum rope_kind { ROPE_NONE /* plain */, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS /* GGUF: a divisor for each frequency */ };
enum kv_expand { KV_EXPAND_NONE, KV_EXPAND_HEAD /* head-block clone */, KV_EXPAND_ROW /* rows repeated, as GA-S2's code does */ };

struct mcfg_rope {
    enum rope_kind kind;
    double theta;
    double factor;             /* linear, llama3, yarn; else 1 */
    double low, high;          /* llama3: low_freq_factor, high_freq_factor; else 0 */
    double original;           /* llama3, yarn: original_max_position_embeddings; else 0 */
    double attention_factor;   /* yarn: on cos and sin, 0.1 ln(factor) + 1 unless given; else 1 */
    double beta_fast, beta_slow; /* yarn: 32 and 1 unless given; else 0 */
    bool truncate;             /* yarn: floor and ceil of the correction range (the default); else true */
    float factors[MCFG_MAX_HEAD_DIM / 2]; /* ROPE_FACTORS: inv_freq[i] is divided by it; else 0 */
};
struct mcfg_gdn { /* the same for all GDN layers; all 0 when there is none */
    int64_t heads;      /* key heads */
    int64_t v_heads;    /* value heads, a multiple of heads; key head of value head hv is hv / (v_heads / heads) */
    int64_t head_k_dim; /* K */
    int64_t head_v_dim; /* V */
    int64_t conv_size;  /* taps of the short convolution on q, k and v; 0 = none */
    bool use_gate;
    bool allow_neg_eigval; /* beta in (0, 2) */
    double norm_eps;       /* of the output norm */
};
struct mcfg_dashlab { /* config.json's `dashlab` object */
    bool present;
    int64_t version;
    char teacher[256];        /* name or path as given by the user */
    char teacher_sha256[65];  /* hash of the teacher's weights, "" when not known */
    enum kv_expand kv_expand;
    char run[65];             /* key of the run that made it, "" when none */
};
struct mcfg {
    enum mcfg_arch arch;
    enum mcfg_layout layout;
    int64_t L;        /* layers, 1..MCFG_MAX_LAYERS */
    int64_t d;        /* width */
    int64_t H, G;     /* query heads, KV heads of full and window attention; H % G == 0 */
    int64_t head_dim; /* even */
    int64_t F;        /* FFN width */
    int64_t N;        /* vocabulary (rows of the embedding) */
    int64_t max_pos;
    double eps;       /* RMSNorm */
    bool tie_embeddings;
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;     /* RMSNorm over head_dim on q and k before RoPE */
    struct mcfg_rope rope;
    enum mixer_kind mixer[MCFG_MAX_LAYERS]; /* entries >= L are MIX_FULL */
    int64_t window[MCFG_MAX_LAYERS];        /* MIX_WINDOW: keys i-W < j <= i, so W with itself; else 0 */
    struct mcfg_gdn gdn;
    int64_t bos, eos[MCFG_MAX_EOS], pad; /* -1 = none */
    int n_eos;            /* eos[0] is config.json's first; others of generation_config.json follow */
    char *chat_template;  /* owned, UTF-8, NULL when there is none */
    struct mcfg_dashlab dashlab;
};

/* path: a folder with config.json (generation_config.json, chat_template.jinja and tokenizer_config.json are looked at too), a *.json
 * file, or a *.gguf file. */
int mcfg_load(struct mcfg *c, const char *path, struct err *e);
int mcfg_parse(struct mcfg *c, const char *name, const char *text, size_t len, struct err *e); /* config.json text */
int mcfg_from_gguf(struct mcfg *c, const struct gguf *g, struct err *e);
void mcfg_free(struct mcfg *c); /* the owned text; zeroes it */
int mcfg_copy(struct mcfg *dst, const struct mcfg *src, struct err *e);
bool mcfg_equal(const struct mcfg *a, const struct mcfg *b); /* by value, chat template included */
/* Every relation the rest of the program relies on (ranges, H % G, even head_dim, windows > 0, GDN shapes); the readers call it. */
int mcfg_check(const struct mcfg *c, const char *name, struct err *e);
bool mcfg_has(const struct mcfg *c, enum mixer_kind k);
int64_t mcfg_count(const struct mcfg *c, enum mixer_kind k);
const char *mcfg_arch_name(enum mcfg_arch a);   /* "qwen2" */
const char *mixer_name(enum mixer_kind k);      /* "full", "window", "gdn" */
bool mixer_parse(const char *s, enum mixer_kind *out); /* also "linear" for gdn */

/*
 * Rotary frequencies, head_dim/2 of them, and the factor on cos and sin. f[i] = 1 / theta^(2i/head_dim), then
 *   linear  f / factor
 *   llama3  w = 2 pi / f; w > original/low: f/factor; w < original/high: f; else t = (original/w - low)/(high - low): (1-t) f/factor + t f
 *   yarn    cd(n) = head_dim ln(original/(2 pi n)) / (2 ln theta); lo = max(floor cd(beta_fast), 0); hi = min(ceil cd(beta_slow),
 *     head_dim-1);
 *           r = clamp((i-lo)/(hi-lo), 0, 1); (f/factor) r + f (1-r)
 *   factors f / factors[i]
 * The float32 form rounds every step to float32, as the reference does; its power differs from other libraries in the last bit for some
 * i (1.2e-7 relative).
 */
void cfg_inv_freq(const struct mcfg *c, float *inv_freq, float *attention_factor);
void cfg_inv_freq_f64(const struct mcfg *c, double *inv_freq, double *attention_factor);

/*
 * Tensors that a model of this configuration has, by canonical name (Hugging Face's for Qwen2/Llama; a GDN layer's stand under self_attn
 * too). Calls fn for each in a fixed order: embedding, layers, final norm, lm_head unless tied. fn returns 0 to go on; its other value
 * is returned.
 */
int mcfg_each_tensor(const struct mcfg *c, int (*fn)(void *ctx, const char *name, int ndim, const int64_t *shape), void *ctx);
int64_t mcfg_params(const struct mcfg *c); /* sum of their sizes */
/* Canonical name -> name in a file of this layout (fla: embeddings, attn_norm, mlp_norm, attn.*). Returns dst. */
char *mcfg_disk_name(enum mcfg_layout layout, const char *canonical, char dst[256]);
/* And back; an unknown name comes back as it is. */
char *mcfg_canonical_name(enum mcfg_layout layout, const char *disk, char dst[256]);

/* Whether a Hugging Face class of this architecture holds the model exactly (no GDN; Llama: no window; one window length; its biases and
 * norms). What it does not hold is written in fla's layout: set c->layout = LAYOUT_FLA before naming tensors. */
bool mcfg_plain(const struct mcfg *c);
/*
 * config.json. Plain models of LAYOUT_HF: transformers 4 form of their architecture, with layer_types when some layer is a window. All
 * others: fla's gated_deltanet form plus `dashlab` (mixers, windows, family, head_dim, rope, biases, GDN shapes and state layout,
 * teacher, KV expansion). dtype: "float32", "bfloat16", "float16" of the weights. mcfg_parse of the text gives an equal struct (the chat
 * template lives elsewhere).
 */
int mcfg_write_json(const struct mcfg *c, const char *dtype, struct str *out, struct err *e);

#endif
