/* Layer specs and selection.json. */
#include "dash/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jread.h"
#include "core/jwrite.h"

int layers_parse(const char *spec, int layers, enum mixer_kind *kind, struct err *e)
{
    enum mixer_kind now = MIX_FULL;
    bool seen[MAX_LAYERS] = {0};
    for (int l = 0; l < layers; l++)
        kind[l] = !strcmp(spec, "all") ? MIX_FULL : MIX_GDN;
    if (!strcmp(spec, "all") || !strcmp(spec, "none"))
        return 0;
    size_t first = strcspn(spec, ":, ");
    if (*spec && spec[first] != ':' && !strchr("0123456789-, ", *spec))
        return ERR(e, E_USAGE, "'%s': neither a run that is there nor a list of layers, such as 0,5,11 or full:0,5 window:2,3 ('none', 'all')",
                   spec);
    if (!*spec)
        return ERR(e, E_USAGE, "empty layer list; write 'none' to keep no layer");
    for (const char *p = spec; *p;) {
        if (*p == ' ' || *p == ',') {
            p++;
            continue;
        }
        if (*p >= 'a' && *p <= 'z') {
            char word[16];
            size_t n = strcspn(p, ":");
            if (p[n] != ':' || n >= sizeof word)
                return ERR(e, E_USAGE, "layer list '%s': expected 'full:', 'window:' or 'linear:' at '%.20s'", spec, p);
            memcpy(word, p, n);
            word[n] = 0;
            if (!mixer_parse(word, &now))
                return ERR(e, E_USAGE, "layer list '%s': unknown operator '%s' (full, window, linear)", spec, word);
            p += n + 1;
            continue;
        }
        char *end;
        long l = strtol(p, &end, 10);
        if (end == p || l < 0 || l >= layers)
            return ERR(e, E_USAGE, "layer list '%s': '%.*s' is not a layer (0..%d)", spec, (int)strcspn(p, ", "), p, layers - 1);
        if (seen[l])
            return ERR(e, E_USAGE, "layer list '%s': layer %ld stands there twice", spec, l);
        seen[l] = true;
        kind[l] = now;
        p = end;
    }
    return 0;
}

void layers_text(const enum mixer_kind *kind, int layers, struct str *out)
{
    size_t at = out->len;
    static const enum mixer_kind named[] = {MIX_FULL, MIX_WINDOW};
    for (size_t k = 0; k < ARRAY_LEN(named); k++) {
        bool first = true;
        for (int l = 0; l < layers; l++)
            if (kind[l] == named[k]) {
                if (first && out->len > at)
                    str_putc(out, ' ');
                str_printf(out, "%s%s%d", first ? mixer_name(named[k]) : "", first ? ":" : ",", l);
                first = false;
            }
    }
    if (out->len == at)
        str_puts(out, "none");
}

void layers_mask(const enum mixer_kind *kind, int layers, char mask[MAX_LAYERS + 1])
{
    for (int l = 0; l < layers; l++)
        mask[l] = kind[l] == MIX_FULL ? 'F' : kind[l] == MIX_WINDOW ? 'W' : 'l';
    mask[layers] = 0;
}

double layers_budget(const enum mixer_kind *kind, int layers, double window_cost)
{
    double b = 0;
    for (int l = 0; l < layers; l++)
        b += kind[l] == MIX_FULL ? 1 : kind[l] == MIX_WINDOW ? window_cost : 0;
    return b;
}

static void write_layers(const struct selection *s, struct jw *w)
{
    jw_key(w, "layers");
    jw_arr(w);
    for (int l = 0; l < s->layers; l++) {
        jw_obj(w);
        jw_ki64(w, "index", l);
        jw_kstr(w, "mixer", s->kind[l] == MIX_GDN ? "linear" : mixer_name(s->kind[l]));
        if (s->has_p) {
            jw_key(w, "p");
            jw_arr(w);
            for (int o = 0; o < MAX_OPS; o++)
                jw_f64(w, s->p[l][o]);
            jw_end_arr(w);
        }
        jw_end_obj(w);
    }
    jw_end_arr(w);
    if (s->has_score) {
        jw_key(w, "score");
        jw_arr(w);
        for (int l = 0; l < s->layers; l++)
            jw_f64(w, s->score[l]);
        jw_end_arr(w);
        int order[MAX_LAYERS];
        selection_order(s, order);
        jw_key(w, "ranking");
        jw_arr(w);
        for (int i = 0; i < s->layers; i++)
            jw_i64(w, order[i]);
        jw_end_arr(w);
    }
}

void selection_order(const struct selection *s, int order[MAX_LAYERS])
{
    for (int l = 0; l < s->layers; l++) {
        int i = l; /* insertion: stable, so ties keep the lower index first */
        for (; i > 0 && s->score[l] > s->score[order[i - 1]]; i--)
            order[i] = order[i - 1];
        order[i] = l;
    }
}

int selection_save(const struct selection *s, const char *dir, struct err *e)
{
    char path[1024];
    struct str j = STR_INIT, text = STR_INIT;
    struct jw w;
    layers_text(s->kind, s->layers, &text);
    jw_init(&w, &j, true);
    jw_obj(&w);
    jw_kstr(&w, "method", s->method);
    jw_kstr(&w, "variant", s->variant);
    jw_ki64(&w, "version", s->version);
    jw_ki64(&w, "asked", s->asked);
    jw_kf64(&w, "budget", s->budget);
    jw_kbool(&w, "filled", s->filled);
    jw_kstr(&w, "spec", str_c(&text));
    write_layers(s, &w);
    jw_ki64(&w, "tokens", s->tokens);
    jw_kf64(&w, "flops_forward", s->flops_forward);
    jw_kf64(&w, "flops_backward", s->flops_backward);
    jw_ki64(&w, "ties_at_cut", s->ties_at_cut);
    jw_ki64(&w, "seed", (int64_t)s->seed);
    if (s->has_base) {
        jw_kf64(&w, "base_accuracy", s->base);
        jw_kbool(&w, "uninformative", s->uninformative);
    }
    if (s->reused)
        jw_kbool(&w, "scores_reused", true);
    jw_end_obj(&w);
    str_putc(&j, '\n');
    str_printf(&text, "\nlayers %d\nfilled %s\n", s->layers, s->filled ? "true" : "false");
    int rc = jw_ok(&w, "selection.json", e) || file_write(path_join(path, dir, "selection.json"), str_c(&j), j.len, e) ||
             file_write(path_join(path, dir, "identity.txt"), str_c(&text), text.len, e);
    str_free(&j);
    str_free(&text);
    return rc ? -1 : 0;
}

/* The optional arrays and marks; score must have one number a layer. */
static int load_scores(struct selection *s, const struct jdoc *d, struct err *e)
{
    const json_t *score = json_object_get(d->root, "score");
    s->has_base = json_object_get(d->root, "base_accuracy") != NULL;
    s->has_score = score != NULL;
    if (s->has_base)
        TRY(jget_f64(d, d->root, "", "base_accuracy", &s->base, e));
    TRY(jget_bool_opt(d, d->root, "", "uninformative", &s->uninformative, e));
    TRY(jget_bool_opt(d, d->root, "", "scores_reused", &s->reused, e));
    TRY(jget_f64_opt(d, d->root, "", "flops_forward", &s->flops_forward, e));
    TRY(jget_f64_opt(d, d->root, "", "flops_backward", &s->flops_backward, e));
    if (!score)
        return 0;
    if (!json_is_array(score) || json_array_size(score) != (size_t)s->layers)
        return ERR(e, E_INPUT, "%s: score: expected an array of %d numbers", d->file, s->layers);
    for (int l = 0; l < s->layers; l++) {
        const json_t *v = json_array_get(score, (size_t)l);
        if (!json_is_number(v))
            return ERR(e, E_INPUT, "%s: score[%d]: expected a number", d->file, l);
        s->score[l] = json_number_value(v);
    }
    return 0;
}

int selection_load(struct selection *s, const char *path, struct err *e)
{
    struct jdoc d;
    const char *method = NULL, *variant = "", *spec = NULL;
    const json_t *layers = NULL;
    int64_t version = 0, seed = 0;
    *s = (struct selection){.filled = true};
    TRY(jdoc_load(&d, path, (size_t)4 << 20, e));
    int rc = jget_str(&d, d.root, "", "method", &method, e) || jget_str(&d, d.root, "", "spec", &spec, e) ||
        jget_arr(&d, d.root, "", "layers", &layers, e) || jget_str_opt(&d, d.root, "", "variant", &variant, e) ||
        jget_i64(&d, d.root, "", "version", 0, 1 << 20, &version, e) || jget_f64(&d, d.root, "", "budget", &s->budget, e) ||
        jget_bool_opt(&d, d.root, "", "filled", &s->filled, e) || jget_i64_opt(&d, d.root, "", "tokens", 0, INT64_MAX, &s->tokens, e) ||
        jget_i64_opt(&d, d.root, "", "seed", 0, INT64_MAX, &seed, e) || jget_i64_opt(&d, d.root, "", "asked", 0, MAX_LAYERS, &s->asked,
        e) || jget_i64_opt(&d, d.root, "", "ties_at_cut", 0, MAX_LAYERS, &s->ties_at_cut, e);
    if (rc == 0 && (json_array_size(layers) < 1 || json_array_size(layers) > MAX_LAYERS))
        rc = ERR(e, E_INPUT, "'%s': %zu layers (1..%d)", path, json_array_size(layers), MAX_LAYERS);
    if (rc == 0) {
        s->layers = (int)json_array_size(layers);
        s->version = (int)version;
        s->seed = (uint64_t)seed;
        snprintf(s->method, sizeof s->method, "%s", method);
        snprintf(s->variant, sizeof s->variant, "%s", variant);
        rc = layers_parse(spec, s->layers, s->kind, e);
        if (rc != 0) {
            e->code = E_INPUT; /* a damaged file, not a wrong flag */
            err_wrap(e, "'%s'", path);
        }
    }
    if (rc == 0)
        rc = load_scores(s, &d, e);
    jdoc_free(&d);
    return rc ? -1 : 0;
}

void selection_top(struct selection *s, int k, const bool *exclude)
{
    bool taken[MAX_LAYERS] = {0};
    double cut = 0;
    for (int l = 0; l < s->layers; l++)
        s->kind[l] = MIX_GDN;
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int l = 0; l < s->layers; l++)
            if (!taken[l] && !(exclude && exclude[l]) && (best < 0 || s->score[l] > s->score[best]))
                best = l;
        if (best < 0)
            break;
        taken[best] = true;
        s->kind[best] = MIX_FULL;
        cut = s->score[best];
    }
    s->ties_at_cut = 0;
    for (int l = 0; l < s->layers; l++)
        s->ties_at_cut += k > 0 && !taken[l] && !(exclude && exclude[l]) && s->score[l] == cut;
}
