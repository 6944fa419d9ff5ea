#include "cli/select_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/stages_cost.h"
#include "cli/stages_work.h"
#include "core/fs.h"

static bool takes(const struct node *n, const char *param)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (!strcmp(n->kind->params[i].name, param))
            return true;
    return false;
}

/* The configuration of the teacher; false when it cannot be read yet: the run will say why. */
static bool teacher_cfg(const struct node *n, struct mcfg *cfg)
{
    char path[1024], mp[1024];
    struct err ignored = ERR_INIT;
    model_path(node_path(n, "model", path), mp);
    return *mp && (file_exists(mp) || dir_exists(mp)) && mcfg_load(cfg, mp, &ignored) == 0;
}

/* ---- the Stage 1 ---- */

/* The line of a run's key that says which model it used; NULL when the key is not known yet. */
static const char *model_line(const struct node *n, size_t *len)
{
    const char *at = n->lines ? strstr(n->lines, "\nmodel ") : NULL;
    if (!at)
        return NULL;
    at++;
    *len = strcspn(at, "\n");
    return at[*len - 1] == '?' ? NULL : at;
}

static int same_teacher(const struct node *n, const struct node *align, struct err *e)
{
    char own[1024], theirs[1024];
    size_t a = 0, b = 0;
    const char *x = model_line(n, &a), *y = model_line(align, &b);
    if (!x || !y || (a == b && !strncmp(x, y, a)))
        return 0;
    return ERR(e, E_USAGE, "stage '%s': its Stage 1 ('%s') is made from another teacher ('%s') than its model ('%s')", n->stage->id,
               align->stage->id, node_path(align, "model", theirs), node_path(n, "model", own));
}

int linear_plan(const struct node *n, struct err *e)
{
    const struct node *align = node_ref(n, "linear");
    const char *want = takes(n, "kv_expand") ? node_str(n, "kv_expand") : "any", *have = NULL;
    char path[1024];
    struct mcfg cfg;
    struct err ignored = ERR_INIT;
    bool manifest = align && !strcmp(align->kind->name, "align");
    if (!node_has(n, "linear"))
        return 0;
    if (manifest)
        have = node_str(align, "kv_expand");
    else if (strcmp(want, "any") && mcfg_load(&cfg, node_path(n, "linear", path), &ignored) == 0) {
        have = cfg.dashlab.kv_expand == KV_EXPAND_HEAD ? "head" : cfg.dashlab.kv_expand == KV_EXPAND_ROW ? "row" : "unknown";
        mcfg_free(&cfg);
    }
    if (have && strcmp(want, "any") && strcmp(want, have))
        return ERR(e, manifest ? E_USAGE : E_INPUT,
                   "stage '%s': the Stage 1 was made with KV expansion '%s', '%s' is asked for; align again with --kv-expand %s",
                   n->stage->id, have, want, want);
    return manifest ? same_teacher(n, align, e) : 0;
}

/* ---- select ---- */

int select_exclude(const struct node *n, int64_t layers, bool exclude[MAX_LAYERS], bool *any, struct err *e)
{
    int64_t list[MAX_LAYERS];
    size_t k = node_list_i64(n, "exclude", list, ARRAY_LEN(list));
    *any = k > 0;
    for (size_t i = 0; i < k; i++) {
        if (list[i] >= layers)
            return ERR(e, E_USAGE, "stage '%s': excluded layer %" PRId64 " is outside 0..%" PRId64, n->stage->id, list[i], layers - 1);
        if (exclude[list[i]])
            return ERR(e, E_USAGE, "stage '%s': layer %" PRId64 " is excluded twice", n->stage->id, list[i]);
        exclude[list[i]] = true;
    }
    return 0;
}

int select_files(const struct selector *s, char sets[1024], char data[1024], struct err *e)
{
    sets[0] = data[0] = 0;
    TRY(s == &sel_published ? cli_bundled(sets, "baselines/index_sets.tsv", e) : 0);
    return s->needs_tokenizer ? cli_bundled(data, "ruler/data", e) : 0;
}

/* What a method needs and the stage does not give. */
static int check_needs(const struct selector *s, const struct node *n, struct err *e)
{
    const char *id = n->stage->id;
    bool scores = node_has(n, "scores"), average = s == &sel_avg_s1 || s == &sel_avg_s2, like = node_has(n, "like");
    if (like && (node_i64(n, "budget") > 0 || node_i64(n, "windows") > 0))
        return ERR(e, E_USAGE, "stage '%s': 'like' takes the place of 'budget' and 'windows'", id);
    if (like && (s == &sel_custom || s == &sel_published))
        return ERR(e, E_USAGE, "stage '%s': method '%s' takes no 'like'", id, s->name);
    if (s != &sel_custom && !like && node_i64(n, "budget") < 1)
        return ERR(e, E_USAGE, "stage '%s': method '%s' needs a budget of at least 1 layer; for none, use method 'custom' with 'none'", id,
                   s->name);
    if (scores)
        return 0;
    if (s->needs_linear && !node_has(n, "linear"))
        return ERR(e, E_USAGE, "stage '%s': method '%s' needs 'linear' (a Stage-1 run)", id, s->name);
    if (s->needs_data && !node_has(n, "data"))
        return ERR(e, E_USAGE, "stage '%s': method '%s' needs 'data' with rows to score", id, s->name);
    if (average && (!node_has(n, "first") || !node_has(n, "second")))
        return ERR(e, E_USAGE, "stage '%s': method '%s' needs --first (the GA run) and --second (the GR run)", id, s->name);
    return 0;
}

/* Budget, windows, excluded layers; for methods that look at nothing else also the set itself. */
static int check_layers(const struct selector *s, const struct node *n, int layers, struct err *e)
{
    bool exclude[MAX_LAYERS] = {0}, any;
    char sets[1024], data[1024], path[1024], mp[1024];
    struct selection *out = NULL;
    TRY(select_exclude(n, layers, exclude, &any, e));
    TRY(select_files(s, sets, data, e));
    model_path(node_path(n, "model", path), mp);
    struct select_input in = {.layers = layers,
                              .budget = (int)node_i64(n, "budget"),
                              .windows = (int)node_i64(n, "windows"),
                              .exclude = any ? exclude : NULL,
                              .of = node_str(n, "of"),
                              .model = node_has(n, "published_model") ? node_str(n, "published_model") : path_base(mp),
                              .sets_path = sets,
                              .spec = node_str(n, "layers")};
    if (!node_has(n, "like"))
        TRY(selector_check_budget(s, &in, e));
    if (s != &sel_custom && s != &sel_published)
        return 0;
    out = malloc(sizeof *out);
    int rc = out ? selector_run(s, &in, out, e) : err_nomem(e, sizeof *out, "a selection");
    free(out);
    return rc;
}

int select_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    const struct selector *s = selector_find(node_str(n, "method"));
    struct mcfg cfg;
    if (!s)
        return 0;
    c->tokens =
        s->trains && !node_has(n, "scores") ? node_i64(n, "tokens") : 0; /* others look at no 'tokens', whatever a scale left there */
    TRY(check_needs(s, n, e));
    TRY(node_has(n, "scores") ? 0 : linear_plan(n, e));
    if (!teacher_cfg(n, &cfg))
        return stage_plan(ctx, n, c, e); /* a dry run may know its shape */
    int rc = check_layers(s, n, (int)cfg.L, e);
    if (rc != 0 && strncmp(e->msg, "stage ", 6))
        err_wrap(e, "stage '%s'", n->stage->id);
    if (s == &sel_ga_s2 || s == &sel_gr_s2)
        c->tokens *= cfg.L; /* a distillation for every layer */
    mcfg_free(&cfg);
    return rc ? -1 : stage_plan(ctx, n, c, e);
}

int layers_plan(const struct node *n, struct err *e)
{
    enum mixer_kind kind[MAX_LAYERS];
    char path[1024], file[1024];
    struct mcfg cfg;
    const char *given = node_path(n, "layers", path);
    if (node_ref(n, "layers") || dir_exists(given) || file_exists(path_join(file, given, "selection.json")) || !teacher_cfg(n, &cfg))
        return 0;
    int rc = layers_parse(node_str(n, "layers"), (int)cfg.L, kind, e);
    mcfg_free(&cfg);
    return rc;
}

/* ---- w/T ---- */

/* Tokens of a row of training data; 0 when it is not known here. */
static int64_t row_length(const struct node *data)
{
    int64_t list[64], longest = 0;
    if (!data)
        return 0;
    if (takes(data, "seq"))
        return node_i64(data, "seq");
    size_t k = takes(data, "lengths") ? node_list_i64(data, "lengths", list, ARRAY_LEN(list)) : 0;
    for (size_t i = 0; i < k; i++)
        longest = MAX(longest, list[i]);
    return longest;
}

/* What a Window layer cost where the layers were chosen; false: none was to be had there, or T is not known. */
static bool chosen_cost(const struct node *by, double *cost)
{
    if (!strcmp(by->kind->name, "search")) {
        int64_t T = row_length(node_ref(by, "data"));
        *cost = T > 0 ? (double)node_i64(by, "window") / (double)T : 0;
        return T > 0 && strstr(node_str(by, "ops"), "window");
    }
    if (strcmp(by->kind->name, "select"))
        return false;
    *cost = node_f64(by, "window_cost");
    return node_i64(by, "windows") > 0 || node_has(by, "like") || strstr(node_str(by, "layers"), "window");
}

int cost_match_plan(const struct node *n, struct err *e)
{
    const struct node *hybrid = node_of_kind(n, "distill"), *data = node_ref(n, "data"), *by = hybrid ? node_ref(hybrid, "layers") : NULL;
    int64_t length[64];
    double cost;
    if (!by || !data || !takes(data, "lengths") || node_bool(n, "allow_cost_mismatch") || !chosen_cost(by, &cost))
        return 0;
    size_t k = node_list_i64(data, "lengths", length, ARRAY_LEN(length));
    for (size_t i = 0; i < k; i++) {
        double own = (double)node_i64(hybrid, "window") / (double)length[i];
        if (fabs(own - cost) > 1e-9)
            return ERR(e, E_USAGE,
                       "stage '%s': a Window layer cost w/T = %.9g where stage '%s' chose the layers, and costs %s/%" PRId64
                       " = %.9g here (window of '%s', length of '%s'): such budgets cannot be compared; make both equal, or set "
                       "allow_cost_mismatch: true on this stage",
                       n->stage->id, cost, by->stage->id, node_str(hybrid, "window"), length[i], own, hybrid->stage->id, data->stage->id);
    }
    return 0;
}
