/* config.json of Qwen2, Qwen3 and Llama models, in the forms that transformers 4 and 5 write. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "model/cfg_int.h"

#define MAX_TEMPLATE_BYTES (1u << 20)

bool cfg_is_set(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v);
}

double cfg_yarn_attention_factor(double factor)
{
    return factor > 1 ? 0.1 * log(factor) + 1 : 1;
}

void cfg_rope_plain(struct mcfg_rope *r, double theta)
{
    *r = (struct mcfg_rope){.kind = ROPE_NONE, .theta = theta, .factor = 1, .attention_factor = 1, .truncate = true};
}

static int read_yarn(struct mcfg *c, const struct jdoc *d, const json_t *o, const char *where, struct err *e)
{
    struct mcfg_rope *r = &c->rope;
    double mscale = 0, all = 0;
    r->kind = ROPE_YARN;
    r->original = (double)c->max_pos;
    r->beta_fast = 32;
    r->beta_slow = 1;
    TRY(jget_f64(d, o, where, "factor", &r->factor, e));
    TRY(jget_f64_opt(d, o, where, "original_max_position_embeddings", &r->original, e));
    TRY(jget_f64_opt(d, o, where, "beta_fast", &r->beta_fast, e));
    TRY(jget_f64_opt(d, o, where, "beta_slow", &r->beta_slow, e));
    TRY(jget_bool_opt(d, o, where, "truncate", &r->truncate, e));
    TRY(jget_f64_opt(d, o, where, "mscale", &mscale, e));
    TRY(jget_f64_opt(d, o, where, "mscale_all_dim", &all, e));
    r->attention_factor = cfg_yarn_attention_factor(r->factor);
    if (mscale != 0 && all != 0 && r->factor > 1)
        r->attention_factor = (0.1 * mscale * log(r->factor) + 1) / (0.1 * all * log(r->factor) + 1);
    return jget_f64_opt(d, o, where, "attention_factor", &r->attention_factor, e);
}

static int read_factors(struct mcfg *c, const struct jdoc *d, const json_t *o, const char *where, struct err *e)
{
    const json_t *v;
    TRY(jget_arr(d, o, where, "factors", &v, e));
    if (json_array_size(v) != (size_t)c->head_dim / 2)
        return ERR(e, E_INPUT, "%s: %s.factors has %zu entries (expected head_dim/2 = %" PRId64 ")", d->file, where, json_array_size(v),
                   c->head_dim / 2);
    c->rope.kind = ROPE_FACTORS;
    for (size_t i = 0; i < json_array_size(v) && i < ARRAY_LEN(c->rope.factors); i++) {
        if (!json_is_number(json_array_get(v, i)))
            return ERR(e, E_INPUT, "%s: %s.factors[%zu]: expected a number", d->file, where, i);
        c->rope.factors[i] = (float)json_number_value(json_array_get(v, i));
    }
    return 0;
}

int cfg_read_rope(struct mcfg *c, const struct jdoc *d, const json_t *o, const char *where, struct err *e)
{
    const char *type = NULL;
    struct mcfg_rope *r = &c->rope;
    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return ERR(e, E_INPUT, "%s: %s: expected an object", d->file, where);
    TRY(jget_f64_opt(d, o, where, "rope_theta", &r->theta, e));
    double partial = 1;
    TRY(jget_f64_opt(d, o, where, "partial_rotary_factor", &partial, e));
    if (partial != 1)
        return ERR(e, E_INPUT, "%s: %s.partial_rotary_factor is %g; only full rotary positions are supported", d->file, where, partial);
    TRY(jget_str_opt(d, o, where, "type", &type, e));
    TRY(jget_str_opt(d, o, where, "rope_type", &type, e)); /* the newer key wins */
    if (!type) {
        if (cfg_is_set(o, "factor"))
            return ERR(e, E_INPUT, "%s: %s has a factor but neither rope_type nor type", d->file, where);
        return 0;
    }
    if (strcmp(type, "default") == 0)
        return 0;
    if (strcmp(type, "linear") == 0) {
        r->kind = ROPE_LINEAR;
        return jget_f64(d, o, where, "factor", &r->factor, e);
    }
    if (strcmp(type, "llama3") == 0) {
        r->kind = ROPE_LLAMA3;
        TRY(jget_f64(d, o, where, "factor", &r->factor, e));
        TRY(jget_f64(d, o, where, "low_freq_factor", &r->low, e));
        TRY(jget_f64(d, o, where, "high_freq_factor", &r->high, e));
        return jget_f64(d, o, where, "original_max_position_embeddings", &r->original, e);
    }
    if (strcmp(type, "yarn") == 0)
        return read_yarn(c, d, o, where, e);
    if (strcmp(type, "factors") == 0)
        return read_factors(c, d, o, where, e);
    return ERR(e, E_INPUT, "%s: %s: rope type '%.60s' is not supported (default, linear, llama3, yarn)", d->file, where, type);
}

void cfg_add_eos(struct mcfg *c, int64_t id)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return;
    if (id >= 0 && c->n_eos < MCFG_MAX_EOS)
        c->eos[c->n_eos++] = id;
}

static int read_eos(struct mcfg *c, const struct jdoc *d, const json_t *root, struct err *e)
{
    const json_t *v = json_object_get(root, "eos_token_id");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v)) {
        int64_t id = -1;
        TRY(jget_i64(d, root, "", "eos_token_id", -1, INT32_MAX, &id, e));
        cfg_add_eos(c, id);
        return 0;
    }
    if (json_array_size(v) > MCFG_MAX_EOS)
        return ERR(e, E_INPUT, "%s: eos_token_id has %zu entries (limit %d)", d->file, json_array_size(v), MCFG_MAX_EOS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > INT32_MAX)
            return ERR(e, E_INPUT, "%s: eos_token_id[%zu] is not a token id", d->file, i);
        cfg_add_eos(c, json_integer_value(x));
    }
    return 0;
}

int cfg_read_ids(struct mcfg *c, const struct jdoc *d, const json_t *root, struct err *e)
{
    c->bos = c->pad = -1;
    TRY(jget_i64_opt(d, root, "", "bos_token_id", -1, INT32_MAX, &c->bos, e));
    TRY(jget_i64_opt(d, root, "", "pad_token_id", -1, INT32_MAX, &c->pad, e));
    return read_eos(c, d, root, e);
}

int cfg_read_act(const struct jdoc *d, const json_t *root, struct err *e)
{
    const char *act = "silu";
    TRY(jget_str_opt(d, root, "", "hidden_act", &act, e));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return ERR(e, E_INPUT, "%s: hidden_act '%.60s' is not supported (silu)", d->file, act);
    return 0;
}

static bool is_jet(const json_t *type)
{
    const char *t = json_string_value(type);
    return t && !strcmp(t, "jet");
}

/* Jet-Nemotron [NVlabs/Jet-Nemotron, jetai/modeling/configs]: attention and window layers are known here, its JetBlocks (a linear attention
 * whose convolution kernels are made from the input) are not. The error names the layers. */
static int refuse_jet(const struct jdoc *d, struct err *e)
{
    const json_t *types = json_object_get(d->root, "layer_types");
    size_t n = json_array_size(types), jets = 0;
    struct str list = STR_INIT;
    for (size_t l = 0; l < n && l < MCFG_MAX_LAYERS; l++) {
        if (!is_jet(json_array_get(types, l)))
            continue;
        size_t last = l;
        while (is_jet(json_array_get(types, last + 1)))
            last++;
        str_printf(&list, last > l ? "%s%zu-%zu" : "%s%zu", list.len ? ", " : "", l, last);
        jets += last - l + 1;
        l = last;
    }
    if (jets)
        (void)ERR(
            e, E_INPUT,
            "%s: jet_nemotron: layers %.120s are JetBlocks (linear attention with a dynamic convolution), which this program does not "
            "have yet; its attention and window layers alone would be no such model",
            d->file, str_c(&list));
    else
        (void)ERR(e, E_INPUT, "%s: jet_nemotron: JetBlock layers (linear attention with a dynamic convolution) are not supported yet",
                  d->file);
    str_free(&list);
    return -1;
}

/* The family by model_type, or by the class when there is none; the class must be the causal language model of the family. */
static int read_arch(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    static const struct {
        const char *type, *cls;
        enum mcfg_arch arch;
    } known[] = {{"qwen2", "Qwen2ForCausalLM", ARCH_QWEN2},
                 {"qwen3", "Qwen3ForCausalLM", ARCH_QWEN3},
                 {"llama", "LlamaForCausalLM", ARCH_LLAMA},
                 {"gated_deltanet", "GatedDeltaNetForCausalLM", ARCH_GATED_DELTANET}};
    const char *type = NULL, *cls = NULL;
    TRY(jget_str_opt(d, d->root, "", "model_type", &type, e));
    const json_t *a = json_object_get(d->root, "architectures");
    if (a && !json_is_null(a)) {
        cls = json_string_value(json_array_get(a, 0));
        if (!json_is_array(a) || !cls)
            return ERR(e, E_INPUT, "%s: architectures: expected an array of names", d->file);
    }
    if (!type && !cls)
        return ERR(e, E_INPUT, "%s: neither model_type nor architectures says what model this is", d->file);
    if (cfg_is_set(d->root, "num_experts") || cfg_is_set(d->root, "num_local_experts") || (type && strstr(type, "moe")))
        return ERR(e, E_INPUT, "%s: '%.60s' is a mixture of experts; only dense feed-forward layers are supported", d->file,
                   type ? type : cls);
    if (!strcmp(type ? type : cls, type ? "jet_nemotron" : "JetNemotronForCausalLM"))
        return refuse_jet(d, e);
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(type ? type : cls, type ? known[i].type : known[i].cls) != 0)
            continue;
        if (cls && strcmp(cls, known[i].cls) != 0)
            return ERR(e, E_INPUT, "%s: architectures names '%.60s', but only %s of model_type '%s' is supported", d->file, cls,
                       known[i].cls, type);
        c->arch = known[i].arch;
        return 0;
    }
    return ERR(e, E_INPUT, "%s: model_type '%.60s' is not supported (qwen2, qwen3, llama, gated_deltanet)", d->file, type ? type : cls);
}

static int read_layer_types(struct mcfg *c, const struct jdoc *d, const json_t *v, int64_t window, struct err *e)
{
    if (!json_is_array(v) || json_array_size(v) != (size_t)c->L)
        return ERR(e, E_INPUT, "%s: layer_types: expected an array of %" PRId64 " names (num_hidden_layers)", d->file, c->L);
    for (int64_t l = 0; l < c->L; l++) {
        const char *s = json_string_value(json_array_get(v, (size_t)l));
        bool slides = s && strcmp(s, "sliding_attention") == 0;
        if (!slides && (!s || strcmp(s, "full_attention") != 0))
            return ERR(e, E_INPUT, "%s: layer_types[%" PRId64 "] is '%.60s' (full_attention or sliding_attention)", d->file, l,
                       s ? s : "no string");
        if (slides && window < 1)
            return ERR(e, E_INPUT, "%s: layer_types[%" PRId64 "] is sliding_attention, but sliding_window is missing", d->file, l);
        if (slides && c->arch == ARCH_LLAMA)
            return ERR(e, E_INPUT, "%s: layer_types[%" PRId64 "] is sliding_attention, which Llama models do not have", d->file, l);
        c->mixer[l] = slides ? MIX_WINDOW : MIX_FULL;
        c->window[l] = slides ? window : 0;
    }
    return 0;
}

static int read_windows(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *types = json_object_get(d->root, "layer_types");
    bool use = false;
    int64_t window = 0, first = 28;
    TRY(jget_bool_opt(d, d->root, "", "use_sliding_window", &use, e));
    if (c->arch != ARCH_LLAMA)
        TRY(jget_i64_opt(d, d->root, "", "sliding_window", 1, INT32_MAX, &window, e));
    if (types && !json_is_null(types))
        return read_layer_types(c, d, types, window, e);
    if (!use || c->arch == ARCH_LLAMA)
        return 0;
    TRY(jget_i64_opt(d, d->root, "", "max_window_layers", 0, INT32_MAX, &first, e));
    if (!cfg_is_set(d->root, "sliding_window")) {
        if (json_object_get(d->root, "sliding_window")) /* null: off */
            return 0;
        window = 4096; /* the class' default */
    }
    for (int64_t l = first; l < c->L; l++) {
        c->mixer[l] = MIX_WINDOW;
        c->window[l] = window;
    }
    return 0;
}

static int read_sizes(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *r = d->root;
    TRY(jget_i64(d, r, "", "hidden_size", 1, 1 << 17, &c->d, e));
    TRY(jget_i64(d, r, "", "intermediate_size", 1, 1 << 20, &c->F, e));
    TRY(jget_i64(d, r, "", "num_hidden_layers", 1, MCFG_MAX_LAYERS, &c->L, e));
    TRY(jget_i64(d, r, "", "num_attention_heads", 1, 4096, &c->H, e));
    TRY(jget_i64(d, r, "", "vocab_size", 1, 1 << 24, &c->N, e));
    c->G = c->H;
    TRY(jget_i64_opt(d, r, "", "num_key_value_heads", 1, 4096, &c->G, e));
    c->max_pos = c->arch == ARCH_LLAMA ? 2048 : 32768;
    TRY(jget_i64_opt(d, r, "", "max_position_embeddings", 1, INT32_MAX, &c->max_pos, e));
    c->head_dim = c->arch == ARCH_QWEN3 ? 128 : 0; /* Qwen3's class has a default of its own */
    TRY(jget_i64_opt(d, r, "", "head_dim", 1, MCFG_MAX_HEAD_DIM, &c->head_dim, e));
    if (!c->head_dim) {
        if (c->d % c->H)
            return ERR(e, E_INPUT,
                       "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64 ", and there is no head_dim",
                       d->file, c->d, c->H);
        c->head_dim = c->d / c->H;
    }
    return 0;
}

static int read_hf(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *r = d->root;
    bool bias = false;
    TRY(read_sizes(c, d, e));
    c->eps = 1e-6;
    TRY(jget_f64_opt(d, r, "", "rms_norm_eps", &c->eps, e));
    TRY(jget_bool_opt(d, r, "", "tie_word_embeddings", &c->tie_embeddings, e));
    TRY(jget_bool_opt(d, r, "", "attention_bias", &bias, e));
    c->qkv_bias = c->arch == ARCH_QWEN2 || bias;
    c->o_bias = c->arch != ARCH_QWEN2 && bias;
    if (c->arch == ARCH_LLAMA)
        TRY(jget_bool_opt(d, r, "", "mlp_bias", &c->mlp_bias, e));
    c->qk_norm = c->arch == ARCH_QWEN3;
    TRY(cfg_read_act(d, r, e));
    TRY(cfg_read_ids(c, d, r, e));
    cfg_rope_plain(&c->rope, 10000);
    TRY(jget_f64_opt(d, r, "", "rope_theta", &c->rope.theta, e));
    double partial = 1;
    TRY(jget_f64_opt(d, r, "", "partial_rotary_factor", &partial, e));
    if (partial != 1)
        return ERR(e, E_INPUT, "%s: partial_rotary_factor is %g; only full rotary positions are supported", d->file, partial);
    const char *key = cfg_is_set(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    TRY(cfg_read_rope(c, d, json_object_get(r, key), key, e));
    return read_windows(c, d, e);
}

static int read_root(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    if (!json_is_object(d->root))
        return ERR(e, E_INPUT, "%s: not a JSON object", d->file);
    TRY(read_arch(c, d, e));
    if (cfg_is_set(d->root, "quantization_config"))
        return ERR(e, E_INPUT, "%s: quantization_config: packed weights are not supported; use the unquantised model or a GGUF file",
                   d->file);
    if (c->arch == ARCH_GATED_DELTANET)
        TRY(cfg_read_fla(c, d, e));
    else
        TRY(read_hf(c, d, e));
    return mcfg_check(c, d->file, e);
}

int mcfg_parse(struct mcfg *c, const char *name, const char *text, size_t len, struct err *e)
{
    struct jdoc d = {0};
    memset(c, 0, sizeof *c);
    TRY(jdoc_parse(&d, name, text, len, e));
    int rc = read_root(c, &d, e);
    jdoc_free(&d);
    if (rc != 0)
        mcfg_free(c);
    return rc;
}

/* ---- folders ---- */

static int set_template(struct mcfg *c, const char *text, size_t n, struct err *e)
{
    c->chat_template = malloc(n + 1);
    if (!c->chat_template)
        return err_nomem(e, n + 1, "chat template");
    memcpy(c->chat_template, text, n);
    c->chat_template[n] = '\0';
    return 0;
}

/* tokenizer_config.json: chat_template is a text, or a list of {name, template} of which "default" counts. */
static int template_of_json(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *v = json_object_get(d->root, "chat_template");
    if (json_is_array(v)) {
        const json_t *hit = NULL;
        for (size_t i = 0; i < json_array_size(v); i++) {
            const char *name = json_string_value(json_object_get(json_array_get(v, i), "name"));
            if (name && strcmp(name, "default") == 0)
                hit = json_object_get(json_array_get(v, i), "template");
        }
        v = hit;
    }
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return ERR(e, E_INPUT, "%s: chat_template: expected a string, or an array of {name, template}", d->file);
    return set_template(c, json_string_value(v), json_string_length(v), e);
}

static int read_template(struct mcfg *c, const char *dir, struct err *e)
{
    char path[1024];
    if (file_exists(path_join(path, dir, "chat_template.jinja"))) {
        struct str s = STR_INIT;
        int rc = file_read(path, MAX_TEMPLATE_BYTES, &s, e);
        if (rc == 0)
            rc = set_template(c, str_c(&s), s.len, e);
        str_free(&s);
        return rc;
    }
    if (!file_exists(path_join(path, dir, "tokenizer_config.json")))
        return 0;
    struct jdoc d = {0};
    TRY(jdoc_load(&d, path, CFG_MAX_BYTES, e));
    int rc = template_of_json(c, &d, e);
    jdoc_free(&d);
    return rc;
}

static int read_generation(struct mcfg *c, const char *dir, struct err *e)
{
    char path[1024];
    struct jdoc d = {0};
    if (!file_exists(path_join(path, dir, "generation_config.json")))
        return 0;
    TRY(jdoc_load(&d, path, CFG_MAX_BYTES, e));
    int rc = json_is_object(d.root) ? read_eos(c, &d, d.root, e) : ERR(e, E_INPUT, "%s: not a JSON object", path);
    jdoc_free(&d);
    return rc;
}

static int load_json(struct mcfg *c, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    int rc = file_read(path, CFG_MAX_BYTES, &s, e);
    if (rc == 0)
        rc = mcfg_parse(c, path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

static int load_dir(struct mcfg *c, const char *dir, struct err *e)
{
    char path[1024];
    if (strlen(dir) > 900)
        return ERR(e, E_INPUT, "'%.60s...': the path is too long (limit 900)", dir);
    if (!file_exists(path_join(path, dir, "config.json")))
        return ERR(e, E_INPUT, "%s: no config.json in this folder", dir);
    TRY(load_json(c, path, e));
    if (read_generation(c, dir, e) != 0 || read_template(c, dir, e) != 0) {
        mcfg_free(c);
        return -1;
    }
    return 0;
}

int mcfg_load(struct mcfg *c, const char *path, struct err *e)
{
    size_t n = strlen(path);
    memset(c, 0, sizeof *c);
    if (dir_exists(path))
        return load_dir(c, path, e);
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0)
        return load_json(c, path, e);
    struct gguf g;
    TRY(gguf_open(&g, path, e));
    int rc = mcfg_from_gguf(c, &g, e);
    gguf_close(&g);
    return rc;
}
