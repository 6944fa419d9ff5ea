/* Stage kind: selection of the layers that keep attention, and its command. Definitions: selectors.md B. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"
#include "cli/select_plan.h"
#include "cli/stages_work.h"

static const char *const method_words[] = {
    "uniform", "random",
    "kv", "ar", "ar-mh", "vt", "cwe",
    "lm-ppl", "act-mse",
    "smart", "halo",
    "ga-s1", "gr-s1", "avg-s1",
    "ga-s2", "gr-s2", "avg-s2",
    "flashmorph", "postnas",
    "published", "custom", NULL};
static const char *const loss_words[] = {"heldout", "train", NULL};
static const char *const form_words[] = {"raw", "ruler", NULL};
static const char *const any_expand_words[] = {"any", "head", "row", NULL};

static const char *const supervision_words[] = {"text", NULL};

static const struct param_spec select_params[] = {
    {.name = "method", .type = PT_WORD, .words = method_words, .help = "see select --list"},
    {.name = "budget", .type = PT_INT, .unit = "layers", .def = "0", .lo = 0, .hi = 256, .instead = "like",
     .help = "layers that stay Full"},
    P_MODEL,
    {.name = "linear", .type = PT_REF, .def = "", .help = "a Stage-1 run, for the methods that need one"},
    {.name = "data", .type = PT_REF, .def = "", .help = "token shard, for the methods that score on data"},
    {.name = "hidden", .type = PT_REF, .def = "", .help = "teacher hidden rows of this shard", .free = true},
    {.name = "rows", .type = PT_INT, .unit = "rows", .def = "16", .lo = 1, .hi = 1e9, .help = "rows that score"},
    {.name = "row_lo", .type = PT_INT, .unit = "rows", .def = "0", .lo = 0, .hi = 1e9, .help = "first of them"},
    {.name = "micro", .type = PT_INT, .unit = "rows", .def = "4", .lo = 1, .hi = 64, .help = "rows computed at once", .free = true},
    {.name = "seed", .type = PT_INT, .def = "0", .lo = 0, .hi = 4294967295.0, .help = "for random sets and probe prompts"},
    {.name = "probe_form", .type = PT_WORD, .def = "raw", .words = form_words,
     .help = "probes, halo: raw: as published; ruler: the same question in RULER's templates (a variant)"},
    {.name = "prompts", .type = PT_INT, .unit = "prompts", .def = "500", .lo = 1, .hi = 1e6,
     .help = "probes: how many (halo: of each of its three)"},
    {.name = "max_new", .type = PT_INT, .unit = "tokens", .def = "200", .lo = 1, .hi = 4096,
     .help = "probes, raw: most new tokens of an answer"},
    {.name = "length", .type = PT_INT, .unit = "tokens", .def = "1024", .lo = 64, .hi = 1e7,
     .help = "probes, ruler: of a prompt with its answer"},
    {.name = "batch", .type = PT_INT, .unit = "prompts", .def = "8", .lo = 1, .hi = 4096,
     .help = "probes: sequences decoded together; changes no result", .free = true},
    {.name = "scores", .type = PT_REF, .def = "",
     .help = "a finished run of the same method: its scores at this budget, nothing is computed again", .whole = true},
    {.name = "first", .type = PT_REF, .def = "", .help = "avg-s1, avg-s2: the GA run", .whole = true},
    {.name = "second", .type = PT_REF, .def = "", .help = "avg-s1, avg-s2: the GR run", .whole = true},
    {.name = "kv_expand", .type = PT_WORD, .def = "any", .words = any_expand_words,
     .help = "the KV expansion that the Stage-1 run must have"},
    {.name = "tokens", .type = PT_INT, .unit = "tokens", .def = "0", .lo = 0, .hi = 1e13,
     .help = "training: of one layer's distillation (ga-s2, gr-s2), of the gates (flashmorph), of the supernet (postnas)"},
    {.name = "train_batch", .type = PT_INT, .unit = "rows", .def = "4", .lo = 1, .hi = 65536, .help = "training: rows of one update"},
    {.name = "lr", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 10,
     .help = "training: learning rate outside the mixers, flashmorph: of the gates; 0 = the method's (7e-6; 2e-2)"},
    {.name = "lr_mixer", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 10,
     .help = "training: learning rate of the mixers; 0 = the method's (1e-4; postnas 1e-3)"},
    {.name = "heldout", .type = PT_INT, .unit = "rows", .def = "16", .lo = 1, .hi = 1e6,
     .help = "training: the shard's last rows, scored on and never trained on"},
    {.name = "score_loss", .type = PT_WORD, .def = "heldout", .words = loss_words, .help = "ga-s2, gr-s2: what ranks the layers"},
    {.name = "sequential", .type = PT_BOOL, .def = "false",
     .help = "ga-s2, gr-s2: layers that are left are scored again after each choice"},
    {.name = "rounds", .type = PT_INT, .def = "1", .lo = 1, .hi = 1000,
     .help = "ga-s2, gr-s2: layers are scored after each of so many parts of the tokens"},
    {.name = "stop_overlap", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 1,
     .help = "ga-s2, gr-s2: no further round when two successive top-K sets share this part; 0 = all rounds"},
    {.name = "beam", .type = PT_INT, .unit = "sets", .def = "8", .lo = 1, .hi = 4096, .help = "postnas: beam width"},
    {.name = "gate_weight", .type = PT_NUM, .def = "0.1", .lo = 0, .hi = 1e6, .help = "flashmorph: weight of the sum of gates"},
    {.name = "ckpt_every", .type = PT_INT, .unit = "steps", .def = "20", .lo = 0, .hi = 1e9, .help = "training: checkpoint interval",
     .free = true},
    {.name = "exclude", .type = PT_INTS, .def = "", .lo = 0, .hi = 255, .help = "layers that stay Linear whatever the method says"},
    {.name = "windows", .type = PT_INT, .unit = "layers", .def = "0", .lo = 0, .hi = 255,
     .help = "as many more layers become Window: next in rank, or evenly spaced (a control of the operator space)"},
    {.name = "like", .type = PT_REF, .def = "", .fan = true,
     .help = "instead of budget and windows: a search whose numbers of Full and Window layers this selection has, too (the same control)"},
    {.name = "window_cost", .type = PT_NUM, .def = "0.125", .lo = 0, .hi = 1, .help = "w/T of a Window layer in the budget"},
    {.name = "of", .type = PT_STR, .def = "", .help = "published: whose set"},
    {.name = "published_model", .type = PT_STR, .def = "",
     .help = "published: for which model (default: the one the teacher's folder is called)"},
    {.name = "layers", .type = PT_STR, .def = "", .help = "custom: the set, e.g. \"full:0,5 window:2\""},
    P_POSITIONS,
    {.name = "supervision", .type = PT_WORD, .def = "", .words = supervision_words,
     .help = "flashmorph: text: every position counts, so that plain text serves (a control); default: answer tokens alone"}};

int save_selection(const struct selection *s, struct run *r, struct result *res, struct err *e)
{
    struct str spec = STR_INIT;
    char mask[MAX_LAYERS + 1];
    layers_text(s->kind, s->layers, &spec);
    layers_mask(s->kind, s->layers, mask);
    jw_kstr(&res->w, "mask", mask);
    jw_kstr(&res->w, "method", s->method);
    jw_kstr(&res->w, "variant", s->variant);
    jw_kstr(&res->w, "spec", str_c(&spec));
    jw_kf64(&res->w, "budget", s->budget);
    jw_ki64(&res->w, "asked", s->asked);
    jw_kbool(&res->w, "filled", s->filled);
    jw_ki64(&res->w, "tokens", s->tokens);
    jw_kf64(&res->w, "flops", s->flops_forward + s->flops_backward);
    jw_ki64(&res->w, "ties_at_cut", s->ties_at_cut);
    if (s->has_base) {
        jw_kf64(&res->w, "base_accuracy", s->base);
        jw_kbool(&res->w, "uninformative", s->uninformative);
    }
    str_free(&spec);
    return selection_save(s, r->out, e) || result_save(res, r, e) ? -1 : 0;
}

static const char *expand_name(enum kv_expand k)
{
    return k == KV_EXPAND_HEAD ? "head" : k == KV_EXPAND_ROW ? "row" : "unknown";
}

static int check_expand(const struct work *w, const struct node *n, struct err *e)
{
    const char *want = node_str(n, "kv_expand");
    if (!w->lin || !strcmp(want, "any") || !strcmp(want, expand_name(w->lin->cfg.dashlab.kv_expand)))
        return 0;
    return ERR(e, E_INPUT, "stage '%s': the Stage 1 was made with KV expansion '%s', '%s' is asked for; align again with --kv-expand %s",
               n->stage->id, expand_name(w->lin->cfg.dashlab.kv_expand), want, want);
}

/* Earlier selections that a selection is made from. */
struct earlier {
    struct selection of[3];
    bool have[3];
};

static int load_earlier(const struct node *n, struct earlier *p, struct err *e)
{
    static const char *const param[] = {"scores", "first", "second"};
    char path[1024], file[1024];
    for (size_t i = 0; i < ARRAY_LEN(param); i++) {
        if (!node_has(n, param[i]))
            continue;
        TRY(selection_load(&p->of[i], path_join(file, node_path(n, param[i], path), "selection.json"), e));
        p->have[i] = true;
    }
    return 0;
}

/* Numbers of Full and Window layers: those of the run named by `like`, else `budget` and `windows`. */
static int like_counts(const struct node *n, int *full, int *window, struct err *e)
{
    char path[1024], file[1024];
    struct selection s;
    *full = (int)node_i64(n, "budget");
    *window = (int)node_i64(n, "windows");
    if (!node_has(n, "like"))
        return 0;
    TRY(selection_load(&s, path_join(file, node_path(n, "like", path), "selection.json"), e));
    *full = *window = 0;
    for (int l = 0; l < s.layers; l++) {
        *full += s.kind[l] == MIX_FULL;
        *window += s.kind[l] == MIX_WINDOW;
    }
    if (*full + *window == 0)
        return ERR(e, E_USAGE, "stage '%s': '%s' chose no Full and no Window layer, so there are no numbers to take over", n->stage->id, file);
    return 0;
}

static struct select_train select_training(const struct node *n)
{
    return (struct select_train){.tokens = node_i64(n, "tokens"), .batch = node_i64(n, "train_batch"), .lr = node_f64(n, "lr"),
                                 .lr_mixer = node_f64(n, "lr_mixer"), .heldout = node_i64(n, "heldout"),
                                 .ckpt_every = node_i64(n, "ckpt_every"), .train_loss = !strcmp(node_str(n, "score_loss"), "train"),
                                 .sequential = node_bool(n, "sequential"), .rounds = node_i64(n, "rounds"),
                                 .stop_overlap = node_f64(n, "stop_overlap"), .beam = node_i64(n, "beam"),
                                 .gate_weight = node_f64(n, "gate_weight")};
}

static int select_go(struct env *env, const struct node *n, struct run *r, struct work *w, const struct selector *s,
                     const struct earlier *from, struct err *e)
{
    struct selection sel;
    struct result res;
    bool exclude[MAX_LAYERS] = {0}, any;
    char sets[1024], data[1024], scores[1024];
    int full, window;
    struct select_train train = select_training(n);
    TRY(like_counts(n, &full, &window, e));
    TRY(select_files(s, sets, data, e));
    TRY(select_exclude(n, w->teacher->cfg.L, exclude, &any, e));
    struct select_input in = {.be = env->rt.be,
                              .teacher = w->teacher,
                              .lin = w->lin,
                              .data = w->data.ids ? &w->data : NULL,
                              .cache = w->hidden,
                              .layers = (int)w->teacher->cfg.L,
                              .budget = full,
                              .row_lo = node_i64(n, "row_lo"),
                              .row_hi = node_i64(n, "row_lo") + node_i64(n, "rows"),
                              .micro = node_i64(n, "micro"),
                              .seed = (uint64_t)node_i64(n, "seed"),
                              .positions = (enum positions)word_at(positions_words, node_str(n, "positions")),
                              .plain_text = node_has(n, "supervision"),
                              .exclude = any ? exclude : NULL,
                              .of = node_str(n, "of"),
                              .windows = window,
                              .counts_taken = node_has(n, "like"),
                              .window_cost = node_f64(n, "window_cost"),
                              .model = node_str(n, "published_model"),
                              .sets_path = sets,
                              .spec = node_str(n, "layers"),
                              .scores = from->have[0] ? &from->of[0] : NULL,
                              .first = from->have[1] ? &from->of[1] : NULL,
                              .second = from->have[2] ? &from->of[2] : NULL,
                              .out_dir = r->out,
                              .work_dir = r->work,
                              .scores_dir = from->have[0] ? node_path(n, "scores", scores) : NULL,
                              .train = &train,
                              .probe = {.ruler = !strcmp(node_str(n, "probe_form"), "ruler"),
                                        .prompts = node_i64(n, "prompts"),
                                        .max_new = node_i64(n, "max_new"),
                                        .length = node_i64(n, "length"),
                                        .batch = (int32_t)node_i64(n, "batch"),
                                        .data_dir = data}};
    TRY(selector_run(s, &in, &sel, e));
    result_begin(&res);
    return save_selection(&sel, r, &res, e);
}

static int select_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct work w;
    const struct selector *s = selector_find(node_str(n, "method"));
    struct earlier *from = calloc(1, sizeof *from);
    if (!s)
        BUG("no selector '%s'", node_str(n, "method"));
    if (!from)
        return err_nomem(e, sizeof *from, "earlier selections");
    int rc = load_earlier(n, from, e);
    bool scores = from->have[0]; /* then nothing is computed */
    if (rc == 0)
        rc = work_open(&w, env, n, !scores && node_has(n, "data"), !scores && node_has(n, "hidden"), !scores && node_has(n, "linear"), e);
    if (rc == 0) {
        rc = check_expand(&w, n, e) || select_go(env, n, r, &w, s, from, e) ? -1 : 0;
        work_close(&w);
    }
    free(from);
    return rc;
}

/* Sets cut from scores that are there, or chosen without looking at the model. */
static bool select_on_host(const struct node *n)
{
    const struct selector *s = selector_find(node_str(n, "method"));
    return node_has(n, "scores") || (s && !s->needs_teacher);
}

const struct stage_kind kind_select = {.name = "select", .about = "layers that keep attention, by a selector", .version = 2,
                                       .params = select_params, .n_params = ARRAY_LEN(select_params), .by_content = true,
                                       .plan = select_plan, .run = select_stage, .host = select_on_host};

/* ---- command ---- */

static int list_selectors(bool json)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_arr(&w);
    for (size_t i = 0; i < n_selectors; i++) {
        const struct selector *x = selectors[i];
        if (!json) {
            printf("%-10s %-9s %s\n%22sneeds %s; cost %s; source: %s\n", x->name, x->certain ? "certain" : "proposed", x->about, "",
                   x->needs, x->cost, x->source);
            continue;
        }
        jw_obj(&w);
        jw_kstr(&w, "name", x->name);
        jw_kstr(&w, "about", x->about);
        jw_kstr(&w, "needs", x->needs);
        jw_kstr(&w, "cost", x->cost);
        jw_kstr(&w, "source", x->source);
        jw_kbool(&w, "certain", x->certain);
        jw_ki64(&w, "version", x->version);
        jw_end_obj(&w);
    }
    jw_end_arr(&w);
    if (json)
        printf("%s\n", str_c(&s));
    else
        printf("dash-2, dash-3: 'dashlab search --ops full,linear' and '--ops full,window,linear'\n");
    str_free(&s);
    return 0;
}
int cmd_select(int argc, char **argv, struct err *e)
{
    bool list = false, json = false;
    for (int i = 0; i < argc; i++) {
        list = list || !strcmp(argv[i], "--list");
        json = json || !strcmp(argv[i], "--json");
    }
    if (list)
        return list_selectors(json);
    return cli_stage(&kind_select, "select",
                     "Chooses the layers that keep attention. 'dashlab select --list' names the methods, what they need and what they "
                     "cost.", "  dashlab select --method uniform --budget 3 --model M --out runs/uniform3", argc, argv, e);
}
