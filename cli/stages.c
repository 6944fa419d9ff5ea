/* What stage kinds share, and running one of them from flags. */
#include "cli/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/stages_cost.h"
#include "core/log.h"
#include "core/prov.h"
#include "experiments/show.h"
#include "model/tok.h"
#include "model/tok_open.h"

const struct stage_kind *const stage_kinds[] = {&kind_ruler_gen, &kind_pack, &kind_hidden, &kind_align, &kind_select, &kind_search,
                                                &kind_distill, &kind_ruler, &kind_lmeval, &kind_landscape, &kind_passkey, &kind_infer,
                                                &kind_train};
const size_t n_stage_kinds = ARRAY_LEN(stage_kinds);

static int locate(const char *path, char dst[1024])
{
    struct err ignored = ERR_INIT;
    return cli_bundled(dst, path, &ignored);
}

void registry_init(struct registry *r, struct env *env)
{
    *r = (struct registry){.locate = locate, .kinds = stage_kinds, .n = n_stage_kinds, .env = env, .report_kinds = report_kinds,
                           .n_report_kinds = n_report_kinds};
}

int env_backend(struct env *env, struct err *e)
{
    return env->rt.be ? 0 : cli_open(&env->rt, env->common, NULL, e);
}

int env_teacher(struct env *env, const char *path, struct model **out, struct err *e)
{
    TRY(env_backend(env, e));
    if (env->teacher && strcmp(env->teacher_path, path)) {
        model_close(env->teacher);
        env->teacher = NULL;
    }
    if (!env->teacher) {
        struct model_open_opts o = {.want_tokenizer = true};
        const char *hash;
        TRY(model_open(&env->teacher, env->rt.be, path, &o, e));
        TRY(model_hash(env->teacher, &hash, e));
        snprintf(env->teacher_path, sizeof env->teacher_path, "%s", path);
    }
    *out = env->teacher;
    return 0;
}

int env_tok(struct env *env, const char *path, const struct tok **out, struct err *e)
{
    if (env->teacher && env->teacher->tok && !strcmp(env->teacher_path, path)) {
        *out = env->teacher->tok;
        return 0;
    }
    if (env->tok && strcmp(env->tok_path, path)) {
        tok_free(env->tok);
        env->tok = NULL;
    }
    if (!env->tok) {
        TRY(tok_open(&env->tok, path, NULL, e));
        snprintf(env->tok_path, sizeof env->tok_path, "%s", path);
    }
    *out = env->tok;
    return 0;
}

void env_close(struct env *env)
{
    tok_free(env->tok);
    env->tok = NULL;
    if (env->teacher)
        model_close(env->teacher);
    env->teacher = NULL;
    cli_close(&env->rt);
}

const char *model_path(const char *given, char dst[1024])
{
    char where[1024];
    if (file_exists(path_join(where, given, "OUTPUTS")) && file_exists(path_join(where, given, "out/config.json")))
        return path_join(dst, given, "out");
    snprintf(dst, 1024, "%s", given);
    return dst;
}

bool stage_on_host(const struct node *n)
{
    UNUSED(n);
    return true;
}

void result_begin(struct result *r)
{
    *r = (struct result){.text = STR_INIT};
    jw_init(&r->w, &r->text, true);
    jw_obj(&r->w);
}

int result_save(struct result *r, const struct run *run, struct err *e)
{
    char path[1024];
    jw_end_obj(&r->w);
    str_putc(&r->text, '\n');
    int rc = jw_ok(&r->w, "result.json", e) || file_write(path_join(path, run->out, "result.json"), str_c(&r->text), r->text.len, e);
    str_free(&r->text);
    return rc ? -1 : 0;
}

/* ---- one stage from flags ---- */

enum { MAX_FLAGS = 80 };
struct stage_flags {
    struct opt opts[MAX_FLAGS];
    const char *value[MAX_FLAGS];
    char name[MAX_FLAGS][40];
    size_t n, n_params;
    const char *out, *limit;
    bool print_manifest, dry_run, force;
};

static void flags_of(struct stage_flags *f, const struct stage_kind *k, struct common *c)
{
    *f = (struct stage_flags){.n_params = k->n_params};
    if (k->n_params + 16 > MAX_FLAGS)
        BUG("stage kind '%s' has too many parameters for flags", k->name);
    for (size_t i = 0; i < k->n_params; i++) {
        const struct param_spec *p = &k->params[i];
        snprintf(f->name[i], sizeof f->name[i], "%s", p->name);
        for (char *s = f->name[i]; *s; s++)
            *s = *s == '_' ? '-' : *s;
        f->opts[f->n++] = (struct opt){.name = f->name[i], .type = OPT_STR, .dst = &f->value[i], .arg = p->type == PT_REF ||
                                       p->type == PT_REFS || p->type == PT_PATH ? "PATH" : p->unit ? p->unit : "VALUE", .help = p->help,
                                       .group = "Stage", .words = p->type == PT_WORD ? p->words : NULL};
        f->value[i] = p->def && *p->def ? p->def : NULL;
    }
    f->opts[f->n++] = (struct opt){.name = "out", .type = OPT_STR, .dst = &f->out, .arg = "RUN",
                                   .help = "run directory to make or go on with", .group = "Run"};
    f->opts[f->n++] = (struct opt){.name = "print-manifest", .type = OPT_BOOL, .dst = &f->print_manifest,
                                   .help = "print the manifest that says the same (for 'dashlab reproduce'), and stop", .group = "Run"};
    f->opts[f->n++] = (struct opt){.name = "dry-run", .type = OPT_BOOL, .dst = &f->dry_run, .help = "print what would run, write nothing",
                                   .group = "Run"};
    f->opts[f->n++] = (struct opt){.name = "memory-limit", .type = OPT_STR, .dst = &f->limit, .arg = "SIZE",
                                   .help = "refuse what needs more, e.g. 40GiB; default: what the device has", .group = "Run"};
    f->opts[f->n++] = (struct opt){.name = "force", .type = OPT_BOOL, .dst = &f->force, .help = "replace a run made with other parameters",
                                   .group = "Run"};
    struct opt common[] = {COMMON_OPTS(c)};
    for (size_t i = 0; i < ARRAY_LEN(common); i++) {
        bool taken = false; /* a stage's own --seed wins */
        for (size_t j = 0; j < f->n_params; j++)
            taken = taken || !strcmp(f->opts[j].name, common[i].name);
        if (!taken)
            f->opts[f->n++] = common[i];
    }
}

/* A YAML scalar: quoted where it could be read as something else. */
static void put_scalar(struct str *out, const char *v)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    if (*v && *v != '-' && v[strspn(v, plain)] == 0 && strcmp(v, "null") != 0) {
        str_puts(out, v);
        return;
    }
    str_putc(out, '"');
    for (; *v; v++)
        str_printf(out, "%s%c", *v == '"' || *v == '\\' ? "\\" : "", *v);
    str_putc(out, '"');
}

static bool is_ref(const struct param_spec *p)
{
    return p->type == PT_REF || p->type == PT_REFS;
}

static bool is_there(const char *path)
{
    return file_exists(path) || dir_exists(path);
}

/* Layers by flag may be a list ("0,5,11"): a manifest has a selection for them. */
static bool is_layer_list(const struct param_spec *p, const char *value)
{
    return is_ref(p) && !strcmp(p->name, "layers") && !is_there(value);
}

static int put_manifest(const struct node *n, struct str *out, struct err *e)
{
    const struct stage_kind *k = n->kind;
    const char *layers = NULL, *model = NULL;
    str_printf(out, "dash: 1\nname: %s\ninputs:\n", k->name);
    for (size_t i = 0; i < k->n_params; i++) {
        const char *v = n->value[i];
        if (!is_ref(&k->params[i]) || !v || !*v)
            continue;
        if (is_layer_list(&k->params[i], v)) {
            layers = v;
            continue;
        }
        if (!is_there(v) && strchr(v, ','))
            return ERR(e, E_USAGE, "--print-manifest: an input of a manifest is one folder, --%s '%s' are several", k->params[i].name, v);
        model = !strcmp(k->params[i].name, "model") ? v : model;
        str_printf(out, "  %s: ", k->params[i].name);
        put_scalar(out, v);
        str_putc(out, '\n');
    }
    str_puts(out, "stages:\n");
    if (layers && model) {
        str_puts(out, "  - id: layers\n    kind: select\n    method: custom\n    model: model\n    layers: ");
        put_scalar(out, layers);
        str_putc(out, '\n');
    }
    str_printf(out, "  - id: %s\n    kind: %s\n", k->name, k->name);
    for (size_t i = 0; i < k->n_params; i++) {
        const char *v = n->value[i], *def = k->params[i].def;
        if (!v || (is_ref(&k->params[i]) ? !*v : def && !strcmp(def, v)))
            continue;
        str_printf(out, "    %s: ", k->params[i].name);
        put_scalar(out, is_ref(&k->params[i]) ? k->params[i].name : v);
        str_putc(out, '\n');
    }
    return str_ok(out, "a manifest", e);
}

int stage_manifest(const char *kind, const struct flag_value *v, size_t n, const struct common *c, struct err *e)
{
    struct env env = {.common = c};
    struct registry reg;
    struct plan p = {0};
    struct str s = STR_INIT;
    registry_init(&reg, &env);
    int rc = plan_single(&p, &reg, kind, v, n, "", e);
    rc = rc ? rc : put_manifest(p.nodes[0], &s, e);
    if (rc == 0)
        fputs(str_c(&s), stdout);
    str_free(&s);
    plan_free(&p);
    env_close(&env);
    return rc;
}

static int run_single(struct plan *p, const struct stage_flags *f, bool json, struct err *e)
{
    struct node *n = p->nodes[0];
    struct plan_summary sum;
    if (n->state == RUN_OTHER && !f->force)
        return ERR(e, E_USAGE, "'%s' holds a run made with other parameters (compare its key.txt); give another --out or --force", n->dir);
    struct run_options ro = {.force = f->force, .single = true};
    struct err first = ERR_INIT;
    int rc = plan_run(p, &ro, &sum, &first);
    if (rc == 0 && sum.declined)
        return ERR(e, E_CHECK, "%s", n->error);
    if (rc != 0 || sum.failed) {
        *e = first;
        if (n->error)
            snprintf(e->msg, sizeof e->msg, "%s", n->error);
        if (e->code != E_INTERRUPTED)
            run_disown(n->dir);
        return -1;
    }
    char path[1024];
    struct str s = STR_INIT;
    rc = file_read(node_out(path, n, "result.json"), 1 << 20, &s, e);
    if (rc == 0 && json)
        fputs(str_c(&s), stdout);
    else if (rc == 0)
        printf("%s: %s\n%s", n->dir, sum.up_to_date ? "up to date" : "done", str_c(&s));
    str_free(&s);
    return rc;
}

int cli_stage(const struct stage_kind *k, const char *command, const char *about, const char *examples, int argc, char **argv,
              struct err *e)
{
    struct common c = COMMON_INIT;
    struct stage_flags f;
    flags_of(&f, k, &c);
    char synopsis[160];
    snprintf(synopsis, sizeof synopsis, "dashlab %s [OPTIONS] --out RUN", command);
    struct cmd_spec spec = {.synopsis = synopsis, .about = about, .examples = examples, .opts = f.opts, .n_opts = f.n};
    const char *pos[1];
    size_t n_pos;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    struct arena a;
    arena_init(&a, 0);
    struct flag_value v[MAX_FLAGS];
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f.n_params; i++) {
        char why[256];
        if (!f.value[i])
            continue;
        const char *canon = param_canon(&a, &k->params[i], f.value[i], why);
        char path[1024];
        if (canon && (k->params[i].type == PT_REF || k->params[i].type == PT_PATH))
            canon = arena_strdup(&a, model_path(canon, path));
        if (!canon)
            rc = ERR(e, E_USAGE, "--%s: %s", f.name[i], why);
        v[n++] = (struct flag_value){k->params[i].name, canon};
    }
    struct env env = {.common = &c, .estimate = f.dry_run};
    struct registry reg;
    struct plan p = {0};
    registry_init(&reg, &env);
    if (rc == 0 && f.limit && !cli_parse_bytes(f.limit, &c.memory_limit_bytes))
        rc = ERR(e, E_USAGE, "--memory-limit '%s' is no size (95.6GiB, 512MiB, 40G, bytes)", f.limit);
    if (rc == 0 && !f.out && !f.print_manifest)
        rc = ERR(e, E_USAGE, "--out RUN is needed");
    if (rc == 0 && f.print_manifest) {
        rc = stage_manifest(k->name, v, n, &c, e);
        arena_free(&a);
        return rc;
    }
    if (rc == 0 && f.dry_run)
        rc = cost_rate(&env, e);
    if (rc == 0)
        rc = plan_single(&p, &reg, k->name, v, n, f.out, e);
    struct str s = STR_INIT;
    if (rc == 0 && f.dry_run) {
        plan_print(&p, false, &s);
        fputs(str_c(&s), stdout);
        rc = cost_fits(&env, p.nodes[0], &p.nodes[0]->cost, e);
    } else if (rc == 0) {
        rc = run_single(&p, &f, c.json, e);
    }
    str_free(&s);
    plan_free(&p);
    env_close(&env);
    arena_free(&a);
    return rc;
}
