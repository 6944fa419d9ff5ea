/* Making, saving and judging prompts; the sweep over layers that probes share. */
#include "baselines/probe.h"

#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jwrite.h"
#include "core/prog.h"
#include "core/prov.h"
#include "ruler/sample.h"

/* ---- sets ---- */

static void prompt_free(struct probe_prompt *p)
{
    free(p->text);
    free(p->ids);
    list_free(&p->refs);
    list_free(&p->listed);
}

void probe_set_free(struct probe_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        prompt_free(&s->v[i]);
    free(s->v);
    *s = (struct probe_set){0};
}

static struct probe_prompt *add(struct probe_set *s, const struct probe *p, struct err *e)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct probe_prompt *grown = realloc(s->v, cap * sizeof *grown);
        if (!grown) {
            err_nomem(e, cap * sizeof *grown, "prompts");
            return NULL;
        }
        s->v = grown;
        s->cap = cap;
    }
    s->v[s->n] = (struct probe_prompt){.probe = p};
    return &s->v[s->n++];
}

/* Takes over the text and its ids; BOS where the tokenizer asks for it. */
static int finish(struct probe_prompt *p, struct str *text, const struct tok *t, struct err *e)
{
    struct tok_ids v = {0};
    const int32_t *bos;
    size_t nb = tok_add_bos(t) ? tok_prefix(t, &bos) : 0;
    TRY(str_ok(text, "a prompt", e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < nb; i++)
        rc = tok_ids_add(&v, bos[i], e);
    if (rc == 0)
        rc = tok_encode(t, str_c(text), text->len, false, &v, e);
    if (rc != 0) {
        tok_ids_free(&v);
        return -1;
    }
    p->text = text->p;
    *text = (struct str)STR_INIT;
    p->ids = v.v;
    p->len = (int32_t)v.n;
    return 0;
}

/* ---- raw form ---- */

uint64_t probe_below(struct probe_gen *g, uint64_t n)
{
    return ctr_below(g->seed, g->stream, g->at++, n);
}

int probe_sample(struct probe_gen *g, size_t n, size_t k, size_t *out, struct err *e)
{
    size_t *v = malloc((n + 1) * sizeof *v);
    if (k > n)
        BUG("%zu of %zu", k, n);
    if (!v)
        return err_nomem(e, n * sizeof *v, "drawing");
    for (size_t i = 0; i < n; i++)
        v[i] = i;
    for (size_t i = 0; i < k; i++) {
        size_t j = i + (size_t)probe_below(g, n - i), t = v[i];
        v[i] = v[j];
        v[j] = t;
        out[i] = v[i];
    }
    free(v);
    return 0;
}

size_t probe_digits_end(const char *p, size_t n, size_t i)
{
    while (i < n && p[i] >= '0' && p[i] <= '9')
        i++;
    return i;
}

/* Words of lower-case letters alone, at least two, from the bundled noun list. */
static int load_words(struct list *out, const char *data_dir, struct err *e)
{
    char path[1024];
    struct list all = {0};
    TRY(list_load(&all, path_join(path, data_dir, "wonderwords-2.2.0/nounlist.txt"), true, e));
    list_sort_unique(&all);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < all.n; i++) {
        size_t n = strlen(all.v[i]);
        if (n > 1 && strspn(all.v[i], "abcdefghijklmnopqrstuvwxyz") == n)
            rc = list_add(out, all.v[i], n, e);
    }
    list_free(&all);
    return rc;
}

static bool letters(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= 'a' && p[i] <= 'z') || (p[i] >= 'A' && p[i] <= 'Z')))
            return false;
    return n >= 3;
}

static int load_keys(struct list *out, const struct tok *t, struct err *e)
{
    const char *p;
    size_t n;
    for (int32_t id = 0; id < tok_vocab_size(t); id++)
        if (!tok_is_special(t, id) && tok_text(t, id, &p, &n) && letters(p, n))
            TRY(list_add(out, p, n, e));
    list_sort_unique(out);
    return 0;
}

static int make_raw(const struct probe *p, const struct select_input *in, struct probe_set *s, struct err *e)
{
    struct probe_gen g = {.seed = in->seed, .stream = p->stream};
    int rc = p->words ? load_words(&g.words, in->probe.data_dir, e) : 0;
    if (rc == 0 && p->keys)
        rc = load_keys(&g.keys, in->teacher->tok, e);
    for (int64_t i = 0; rc == 0 && i < in->probe.prompts; i++) {
        struct str text = STR_INIT;
        struct probe_prompt *q = add(s, p, e);
        rc = q ? p->make(&g, &text, q, e) || finish(q, &text, in->teacher->tok, e) : -1;
        if (rc == 0)
            q->max_new = (int32_t)in->probe.max_new;
        str_free(&text);
    }
    list_free(&g.words);
    list_free(&g.keys);
    return rc ? -1 : 0;
}

/* ---- RULER's form ---- */

static int64_t count_tokens(void *tok, const char *text, size_t n)
{
    struct err ignored = ERR_INIT;
    int64_t count = -1;
    return tok_count(tok, text, n, false, &count, &ignored) == 0 ? count : -1;
}

static int read_record(const struct probe *p, const char *line, size_t n, const struct tok *t, struct probe_prompt *q, struct err *e)
{
    struct jdoc d = {0};
    const char *input, *prefix;
    const json_t *outputs;
    struct str text = STR_INIT;
    TRY(jdoc_parse(&d, "a RULER record", line, n, e));
    int rc = jget_str(&d, d.root, "", "input", &input, e) || jget_str(&d, d.root, "", "answer_prefix", &prefix, e) ||
        jget_arr(&d, d.root, "", "outputs", &outputs, e);
    for (size_t i = 0; rc == 0 && i < json_array_size(outputs); i++) {
        const char *z = json_string_value(json_array_get(outputs, i));
        rc = z ? list_add(&q->refs, z, strlen(z), e) : ERR(e, E_INPUT, "a RULER record: outputs[%zu] is not a string", i);
    }
    if (rc == 0) {
        str_printf(&text, "%s%s", input, prefix);
        q->ruler = true;
        q->max_new = (int32_t)p->ruler.gen_tokens;
        rc = finish(q, &text, t, e);
    }
    str_free(&text);
    jdoc_free(&d);
    return rc ? -1 : 0;
}

static int make_ruler(const struct probe *p, const struct select_input *in, struct probe_set *s, struct err *e)
{
    struct ruler_res res = {0};
    struct str out = STR_INIT;
    struct tok *t = in->teacher->tok;
    int rc = ruler_res_load(&res, &(struct ruler_sources){.data_dir = in->probe.data_dir}, e);
    if (rc == 0) {
        struct gen g = {.task = &p->ruler, .res = &res, .counter = {count_tokens, t}, .compact = true, .before = "", .after = "",
                        .max_len = in->probe.length, .seed = (int64_t)(in->seed & 0xffffffffu)};
        rc = gen_task(&g, in->probe.prompts, &out, e);
    }
    for (const char *line = str_c(&out); rc == 0 && *line;) {
        size_t n = strcspn(line, "\n");
        struct probe_prompt *q = add(s, p, e);
        rc = q ? read_record(p, line, n, t, q, e) : -1;
        line += n + (line[n] == '\n');
    }
    ruler_res_free(&res);
    str_free(&out);
    return rc ? -1 : 0;
}

int probe_make(const struct probe *p, const struct select_input *in, struct probe_set *s, struct err *e)
{
    size_t from = s->n;
    TRY(in->probe.ruler || !p->make ? make_ruler(p, in, s, e) : make_raw(p, in, s, e));
    for (size_t i = from; i < s->n; i++)
        if (s->v[i].len + (int64_t)s->v[i].max_new > in->teacher->cfg.max_pos)
            return ERR(e, E_USAGE,
                       "probe '%s': prompt %zu has %d tokens, with %d new ones more than the model's %" PRId64 "; use --probe-form ruler "
                       "with a smaller --length, or a smaller --max-new", p->name, i - from, (int)s->v[i].len, (int)s->v[i].max_new,
                       in->teacher->cfg.max_pos);
    return 0;
}

int probe_save(const struct probe_set *s, const char *dir, struct err *e)
{
    struct str out = STR_INIT;
    char path[1024];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n; i++) {
        struct jw w;
        jw_init(&w, &out, false);
        jw_obj(&w);
        jw_kstr(&w, "probe", s->v[i].probe->name);
        jw_kstr(&w, "form", s->v[i].ruler ? "ruler" : "raw");
        jw_kstr(&w, "prompt", s->v[i].text);
        jw_key(&w, "answers");
        jw_arr(&w);
        for (size_t k = 0; k < s->v[i].refs.n; k++)
            jw_str(&w, s->v[i].refs.v[k]);
        jw_end_arr(&w);
        jw_end_obj(&w);
        str_putc(&out, '\n');
        rc = jw_ok(&w, "prompts.jsonl", e);
    }
    if (rc == 0)
        rc = str_ok(&out, "prompts.jsonl", e) || file_write(path_join(path, dir, "prompts.jsonl"), str_c(&out), out.len, e);
    str_free(&out);
    return rc ? -1 : 0;
}

/* ---- judging ---- */

static double judge(const struct probe_prompt *p, const char *text, size_t n)
{
    bool null;
    if (p->ruler)
        return ruler_match(text, n, (const char *const *)p->refs.v, p->refs.n, false, &null) / 100;
    return p->probe->right(p, text, n);
}

static int judge_all(const struct model *m, const struct probe_set *s, int32_t *const *out, const int32_t *out_len, double *right,
                     double *mean, int64_t *tokens, struct err *e)
{
    *mean = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct str text = STR_INIT;
        int32_t n = out_len[i];
        *tokens += s->v[i].len + n;
        for (int k = 0; n > 0 && k < m->cfg.n_eos; k++)
            if (out[i][n - 1] == m->cfg.eos[k]) {
                n--;
                break;
            }
        int rc = tok_decode(m->tok, out[i], (size_t)n, true, &text, e);
        double v = rc == 0 ? judge(&s->v[i], str_c(&text), text.len) : 0;
        str_free(&text);
        TRY(rc);
        *mean += v;
        if (right)
            right[i] = v;
    }
    *mean /= (double)MAX(s->n, (size_t)1);
    return 0;
}

int probe_accuracy(struct model *m, const struct probe_set *s, const bool *ablate, int32_t batch, double *right, double *mean,
                   int64_t *tokens, struct err *e)
{
    int32_t n = (int32_t)s->n, most = 1;
    const int32_t **prompt = calloc(s->n + 1, sizeof *prompt);
    int32_t *len = calloc(s->n + 1, sizeof *len), *max_new = calloc(s->n + 1, sizeof *len), *out_len = calloc(s->n + 1, sizeof *len),
        **out = calloc(s->n + 1, sizeof *out);
    int rc = prompt && len && max_new && out_len && out ? 0 : err_nomem(e, s->n * 32, "prompts");
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        prompt[i] = s->v[i].ids;
        len[i] = s->v[i].len;
        max_new[i] = s->v[i].max_new;
        most = MAX(most, max_new[i]);
        out[i] = malloc((size_t)MAX(max_new[i], 1) * sizeof **out);
        rc = out[i] ? 0 : err_nomem(e, (size_t)max_new[i] * sizeof **out, "generated ids");
    }
    struct gen_opts o = {.batch = batch, .max_new = most, .max_new_each = max_new, .stop = m->cfg.eos, .n_stop = m->cfg.n_eos,
                         .ablate = ablate};
    if (rc == 0)
        rc = gen_greedy(m, n, prompt, len, &o, out, out_len, e) || judge_all(m, s, out, out_len, right, mean, tokens, e);
    for (int32_t i = 0; out && i < n; i++)
        free(out[i]);
    free((void *)(uintptr_t)prompt);
    free(len);
    free(max_new);
    free(out_len);
    free(out);
    return rc ? -1 : 0;
}

/* ---- one value a layer, resumable ---- */

/* Lines "layer value tokens flops"; a torn last line is cut off the file, so that the next one does not continue it. */
static int read_kept(const struct select_input *in, const char *path, struct per_layer *out, bool *have, struct err *e)
{
    struct str s = STR_INIT;
    if (!file_exists(path))
        return 0;
    TRY(file_read(path, 1 << 20, &s, e));
    const char *torn = s.p ? strrchr(s.p, '\n') : NULL;
    size_t whole = torn ? (size_t)(torn + 1 - s.p) : 0;
    if (whole < s.len && file_write(path, str_c(&s), whole, e) != 0) {
        str_free(&s);
        return -1;
    }
    for (char *line = s.p, *nl; line && (nl = strchr(line, '\n')); line = nl + 1) {
        char *at = line, *end;
        *nl = 0;
        long layer = strtol(at, &end, 10);
        double v[3];
        int got = 0;
        while (end != at && got < 3) {
            at = end;
            v[got++] = strtod(at, &end);
        }
        if (got < 3 || end == at || layer < -1 || layer >= in->layers || have[layer + 1])
            continue; /* computed again */
        *(layer < 0 ? &out->base : &out->value[layer]) = v[0];
        out->tokens += (int64_t)v[1];
        out->flops += v[2];
        have[layer + 1] = true;
    }
    str_free(&s);
    return 0;
}

static int keep_line(const char *path, int layer, double v, int64_t tokens, double flops, struct err *e)
{
    struct str s = STR_INIT;
    str_printf(&s, "%d\t%.17g\t%" PRId64 "\t%.17g\n", layer, v, tokens, flops);
    int rc = str_ok(&s, "layers.tsv", e) || file_append(path, str_c(&s), s.len, true, e);
    str_free(&s);
    return rc ? -1 : 0;
}

int per_layer_run(const struct select_input *in, double least, int (*fn)(void *, int, double *, int64_t *, struct err *), void *ctx,
                  struct per_layer *out, struct err *e)
{
    bool have[MAX_LAYERS + 1] = {0};
    char path[1024] = "";
    struct prog bar;
    *out = (struct per_layer){0};
    if (in->work_dir)
        TRY(read_kept(in, path_join(path, in->work_dir, "layers.tsv"), out, have, e));
    prog_start(&bar, "layers", "layer", in->layers + 1);
    int rc = 0;
    for (int l = -1; rc == 0 && l < in->layers; l++) {
        double f0 = in->be->flops, *v = l < 0 ? &out->base : &out->value[l];
        int64_t tokens = 0;
        if (l >= 0 && out->base < least)
            break;
        if (have[l + 1])
            continue;
        rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted after %d of %d layers", l, in->layers) : fn(ctx, l, v, &tokens, e);
        if (rc == 0 && in->work_dir)
            rc = keep_line(path, l, *v, tokens, in->be->flops - f0, e);
        out->tokens += tokens;
        out->flops += in->be->flops - f0;
        prog_update(&bar, l + 2, NULL);
    }
    prog_end(&bar);
    return rc ? -1 : 0;
}

/* ---- a selector that is one probe ---- */

struct probe_run {
    const struct select_input *in;
    const struct probe_set *set;
};

static int accuracy_of(void *ctx, int layer, double *value, int64_t *tokens, struct err *e)
{
    struct probe_run *r = ctx;
    bool ablate[MAX_LAYERS] = {0};
    if (layer >= 0)
        ablate[layer] = true;
    return probe_accuracy(r->in->teacher, r->set, layer < 0 ? NULL : ablate, r->in->probe.batch, NULL, value, tokens, e);
}

int probe_select(const struct select_input *in, const struct probe_set *set, struct selection *out, struct err *e)
{
    struct probe_run r = {in, set};
    struct per_layer *v = malloc(sizeof *v);
    int rc = v ? per_layer_run(in, PROBE_INFORMATIVE, accuracy_of, &r, v, e) : err_nomem(e, sizeof *v, "scores");
    if (rc == 0) {
        out->base = v->base;
        out->has_base = true;
        out->uninformative = out->base < PROBE_INFORMATIVE;
        out->has_score = !out->uninformative;
        for (int l = 0; l < in->layers; l++) {
            out->score[l] = out->has_score ? v->base - v->value[l] : 0;
            out->kind[l] = MIX_GDN;
        }
        out->tokens = v->tokens;
        out->flops_forward = v->flops;
        if (in->probe.ruler)
            snprintf(out->variant, sizeof out->variant, "RULER form");
        if (out->has_score)
            selection_top(out, in->budget, in->exclude);
    }
    free(v);
    return rc ? -1 : 0;
}

int probe_pick(const struct probe *p, const struct select_input *in, struct selection *out, struct err *e)
{
    struct probe_set set = {0};
    int rc = probe_make(p, in, &set, e);
    if (rc == 0 && in->out_dir)
        rc = probe_save(&set, in->out_dir, e);
    if (rc == 0)
        rc = probe_select(in, &set, out, e);
    probe_set_free(&set);
    return rc ? -1 : 0;
}
