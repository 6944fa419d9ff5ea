/* Expansion of a manifest into nodes, their keys, and access to their values. */
#include "experiments/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"

/* ---- values ---- */

static size_t param_at(const struct node *n, const char *param)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (!strcmp(n->kind->params[i].name, param))
            return i;
    BUG("stage kind '%s' has no parameter '%s'", n->kind->name, param);
}

const char *node_str(const struct node *n, const char *param)
{
    const char *v = n->value[param_at(n, param)];
    return v ? v : "";
}

bool node_has(const struct node *n, const char *param)
{
    return n->value[param_at(n, param)] != NULL;
}

int64_t node_i64(const struct node *n, const char *param)
{
    int64_t v = 0;
    if (!parse_i64(node_str(n, param), &v))
        BUG("parameter '%s' = '%s' is no integer", param, node_str(n, param));
    return v;
}

double node_f64(const struct node *n, const char *param)
{
    double v = 0;
    if (!parse_f64(node_str(n, param), &v))
        BUG("parameter '%s' = '%s' is no number", param, node_str(n, param));
    return v;
}

bool node_bool(const struct node *n, const char *param)
{
    return !strcmp(node_str(n, param), "true");
}

struct node *node_ref(const struct node *n, const char *param)
{
    struct node **r = n->ref[param_at(n, param)];
    return r ? r[0] : NULL;
}

size_t node_list_f64(const struct node *n, const char *param, double *out, size_t cap)
{
    size_t k = 0;
    for (const char *s = node_str(n, param); *s && k < cap;) {
        char item[64];
        size_t len = strcspn(s, ",");
        snprintf(item, sizeof item, "%.*s", (int)len, s);
        if (!parse_f64(item, &out[k++]))
            BUG("parameter '%s': '%s' is no number", param, item);
        s += len;
        s += *s == ',';
    }
    return k;
}

size_t node_list_i64(const struct node *n, const char *param, int64_t *out, size_t cap)
{
    double v[256];
    size_t k = node_list_f64(n, param, v, MIN(cap, ARRAY_LEN(v)));
    for (size_t i = 0; i < k; i++)
        out[i] = (int64_t)v[i];
    return k;
}

char *node_out(char dst[1024], const struct node *n, const char *rel)
{
    char out[1024];
    return path_join(dst, path_join(out, n->dir, "out"), rel);
}

const char *node_path(const struct node *n, const char *param, char dst[1024])
{
    size_t i = param_at(n, param);
    char where[1024];
    dst[0] = 0;
    if (n->ref[i] && n->ref[i][0])
        path_join(dst, n->ref[i][0]->dir, "out");
    else if (n->path[i] && file_exists(path_join(where, n->path[i], "OUTPUTS")))
        path_join(dst, n->path[i], "out");
    else if (n->path[i])
        snprintf(dst, 1024, "%s", n->path[i]);
    return dst;
}

/* ---- expansion ---- */

static const struct input *find_input(const struct manifest *m, const char *id, size_t n)
{
    for (size_t i = 0; m && i < m->n_inputs; i++)
        if (strlen(m->inputs[i].name) == n && !strncmp(m->inputs[i].name, id, n))
            return &m->inputs[i];
    return NULL;
}

static struct node *add_node(struct plan *p, const struct stage *s)
{
    struct node **grown = arena_array(&p->arena, p->n + 1, sizeof *grown);
    struct node *n = arena_alloc(&p->arena, sizeof *n);
    if (!grown || !n)
        return NULL;
    if (p->n)
        memcpy(grown, p->nodes, p->n * sizeof *grown);
    p->nodes = grown;
    p->nodes[p->n++] = n;
    *n = (struct node){.stage = s, .kind = s->kind, .label = s->label, .point = ""};
    n->value = arena_array(&p->arena, s->kind->n_params, sizeof *n->value);
    n->ref = arena_array(&p->arena, s->kind->n_params, sizeof *n->ref);
    n->path = arena_array(&p->arena, s->kind->n_params, sizeof *n->path);
    if (!n->value || !n->ref || !n->path)
        return NULL;
    for (size_t i = 0; i < s->kind->n_params; i++)
        n->value[i] = s->set[i].value;
    return n;
}

/* Whether a node has the settings of "@name=value@name=value", itself or what it refers to; numbers are compared as numbers. @label=L:
 * its name in tables. */
static bool settings_match(const struct node *n, const char *f, const char *end)
{
    while (f < end) {
        char name[64], want[64];
        double a, b;
        size_t len = strcspn(f + 1, "@,|"), eq = strcspn(f + 1, "=");
        if (eq >= len)
            return false;
        snprintf(name, sizeof name, "%.*s", (int)eq, f + 1);
        snprintf(want, sizeof want, "%.*s", (int)(len - eq - 1), f + 2 + eq);
        const char *have = !strcmp(name, "label") ? n->label : node_setting(n, name);
        if (!have || !(parse_f64(have, &a) && parse_f64(want, &b) ? a == b : !strcmp(have, want)))
            return false;
        f += len + 1;
    }
    return true;
}

/* Nodes of all stages named in a list, in order, NULL-terminated; inputs give none. STAGE@name=value takes those of its runs that have
 * this setting. */
static struct node **nodes_of(struct plan *p, const char *ids, size_t upto)
{
    struct node **out = arena_array(&p->arena, p->n + 1, sizeof *out);
    size_t k = 0;
    for (const char *id = ids; out && *id;) {
        size_t len = strcspn(id, ","), name = MIN(len, strcspn(id, "@"));
        for (size_t i = 0; i < upto; i++)
            if (strlen(p->nodes[i]->stage->id) == name && !strncmp(p->nodes[i]->stage->id, id, name) &&
                settings_match(p->nodes[i], id + name, id + len))
                out[k++] = p->nodes[i];
        id += len;
        id += *id == ',';
    }
    return out;
}

static void set_value(struct plan *p, struct node *n, const char *name, size_t name_len, const char *value, size_t value_len)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (strlen(n->kind->params[i].name) == name_len && !strncmp(n->kind->params[i].name, name, name_len)) {
            n->value[i] = arena_strndup(&p->arena, value, value_len);
            n->point = arena_printf(&p->arena, "%s%s%.*s=%.*s", n->point, *n->point ? " " : "", (int)name_len, name, (int)value_len, value);
        }
}

/* The c-th combination of matrix and points, applied to n. */
static void apply_combination(struct plan *p, struct node *n, size_t c)
{
    const struct stage *s = n->stage;
    for (size_t i = 0; i < s->n_matrix; i++) {
        size_t count = 1;
        for (const char *v = s->matrix[i].value; *v; v++)
            count += *v == '|';
        size_t pick = c % count;
        c /= count;
        const char *v = s->matrix[i].value;
        for (; pick; pick--)
            v = strchr(v, '|') + 1;
        set_value(p, n, s->matrix[i].name, strlen(s->matrix[i].name), v, strcspn(v, "|"));
    }
    if (s->n_points) {
        for (const char *v = s->points[c % s->n_points].value; *v;) {
            size_t len = strcspn(v, "|"), eq = strcspn(v, "=");
            set_value(p, n, v, eq, v + eq + 1, len - eq - 1);
            v += len;
            v += *v == '|';
        }
    }
}

static size_t combinations(const struct stage *s)
{
    size_t total = s->n_points ? s->n_points : 1;
    for (size_t i = 0; i < s->n_matrix; i++) {
        size_t count = 1;
        for (const char *v = s->matrix[i].value; *v; v++)
            count += *v == '|';
        total *= count;
    }
    return total;
}

/* A list of references without their settings. */
static const char *stage_names(struct plan *p, const char *ids)
{
    char *out = arena_strdup(&p->arena, ids), *w = out;
    for (const char *r = ids; out && *r; r++) {
        if (*r == '@')
            r += strcspn(r, ",");
        *w++ = *r;
        if (!*r)
            break;
    }
    if (out)
        *w = 0;
    return out;
}

static int expand_stage(struct plan *p, const struct stage *s, struct err *e)
{
    size_t upto = p->n, fan = s->kind->n_params;
    struct node **parents = NULL;
    for (size_t i = 0; i < s->kind->n_params; i++)
        if (s->kind->params[i].fan && s->set[i].value) {
            fan = i;
            parents = nodes_of(p, s->set[i].value, upto);
        }
    size_t n_par = 0;
    while (parents && parents[n_par])
        n_par++;
    bool fanned = n_par > 0;
    if (fan < s->kind->n_params && !fanned && strchr(s->set[fan].value, '@') && nodes_of(p, stage_names(p, s->set[fan].value), upto)[0])
        return ERR(e, E_USAGE, "%s:%d:%d: stage '%s': '%s': no run has these settings", p->m->path, s->at->line, s->at->col, s->id,
                   s->set[fan].value);
    if (fan < s->kind->n_params && !fanned && !find_input(p->m, s->set[fan].value, strlen(s->set[fan].value)))
        return 0; /* everything it refers to is skipped at this scale */
    for (size_t a = 0; a < (fanned ? n_par : 1); a++)
        for (size_t c = 0; c < combinations(s); c++) {
            struct node *n = add_node(p, s);
            if (!n)
                return arena_ok(&p->arena, "plan", e);
            if (fanned) {
                n->ref[fan] = arena_array(&p->arena, 2, sizeof *n->ref[fan]);
                n->ref[fan][0] = parents[a];
                n->point = parents[a]->point;
                n->label = parents[a]->kind == s->kind || s->label == s->id ? parents[a]->label : s->label;
            }
            apply_combination(p, n, c);
            for (size_t i = 0; i < s->kind->n_params; i++) {
                const struct param_spec *ps = &s->kind->params[i];
                if ((ps->type != PT_REF && ps->type != PT_REFS) || (i == fan && fanned) || !n->value[i])
                    continue;
                n->ref[i] = nodes_of(p, n->value[i], upto);
                if (ps->type == PT_REF && n->ref[i] && n->ref[i][0] && n->ref[i][1])
                    return ERR(e, E_USAGE, "%s:%d:%d: stage '%s': '%s' refers to '%s', which has several runs; one is needed", p->m->path,
                               s->at->line, s->at->col, s->id, ps->name, n->value[i]);
                if (n->ref[i] && !n->ref[i][0])
                    n->ref[i] = NULL;
            }
        }
    return 0;
}

/* ---- what a report names ---- */

bool node_named(const struct node *n, const char *text)
{
    size_t id = strcspn(text, "@");
    return strlen(n->stage->id) == id && !strncmp(n->stage->id, text, id) && settings_match(n, text + id, text + strlen(text));
}

size_t plan_named(const struct plan *p, const char *text, const struct node **out, size_t cap)
{
    size_t k = 0;
    for (size_t i = 0; i < p->n && k < cap; i++)
        if (node_named(p->nodes[i], text))
            out[k++] = p->nodes[i];
    return k;
}

/* ---- what is needed of a base ---- */

static void need(const struct plan *p, const struct node *n, bool *needed)
{
    size_t at = 0;
    while (at < p->n && p->nodes[at] != n)
        at++;
    if (at == p->n || needed[at])
        return;
    needed[at] = true;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            need(p, n->ref[i][k], needed);
}

/* Every run that a text somewhere in a report names. */
static void need_named(const struct plan *p, const struct ynode *y, bool *needed)
{
    for (size_t i = 0; y->kind == Y_SCALAR && i < p->n; i++)
        if (node_named(p->nodes[i], y->s))
            need(p, p->nodes[i], needed);
    for (size_t i = 0; y->kind != Y_SCALAR && i < y->n; i++)
        need_named(p, y->item[i], needed);
}

/* Runs of a base stay when a stage of this manifest or a report needs them. */
static int prune_base(struct plan *p, struct err *e)
{
    size_t kept = 0;
    bool *needed = arena_array(&p->arena, p->n + 1, sizeof *needed);
    if (!needed)
        return arena_ok(&p->arena, "plan", e);
    for (size_t i = 0; i < p->n; i++)
        if (!p->nodes[i]->stage->base)
            need(p, p->nodes[i], needed);
    for (size_t i = 0; i < p->m->n_reports; i++)
        need_named(p, p->m->reports[i].node, needed);
    for (size_t i = 0; i < p->n; i++)
        if (needed[i])
            p->nodes[kept++] = p->nodes[i];
    p->n = kept;
    return 0;
}

static int set_planned(struct plan *p, struct node *n, struct err *e);

int plan_make(struct plan *p, const struct manifest *m, const struct registry *reg, const char *runs, struct err *e)
{
    *p = (struct plan){.m = m, .reg = reg};
    arena_init(&p->arena, (size_t)256 << 20);
    snprintf(p->runs, sizeof p->runs, "%s", runs);
    for (size_t i = 0; i < m->n_stages; i++)
        if (!m->stages[i].skipped && expand_stage(p, &m->stages[i], e) != 0) {
            plan_free(p);
            return -1;
        }
    if (arena_ok(&p->arena, "plan", e) != 0 || prune_base(p, e) != 0) {
        plan_free(p);
        return -1;
    }
    for (size_t i = 0; i < p->n; i++) {
        bool known;
        if (set_planned(p, p->nodes[i], e) != 0 || node_resolve(p, p->nodes[i], &known, e) != 0) {
            plan_free(p);
            return -1;
        }
    }
    return 0;
}

void plan_free(struct plan *p)
{
    arena_free(&p->arena);
    *p = (struct plan){0};
}

/* ---- keys ---- */

/* sha256 of a file, or of the sorted "HASH  NAME" lines of a folder's files (not recursive): the identity of an input. */
static int input_hash(const char *path, char hex[65], struct err *e)
{
    if (!dir_exists(path))
        return sha256_file(path, hex, e);
    struct names names = {0};
    struct str s = STR_INIT;
    TRY(dir_list(path, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        char file[1024], h[65];
        path_join(file, path, names.v[i]);
        if (dir_exists(file) || names.v[i][0] == '.' || !strncmp(names.v[i], "README", 6))
            continue;
        rc = sha256_file(file, h, e);
        str_printf(&s, "%s  %s\n", h, names.v[i]);
    }
    if (rc == 0)
        rc = sha256_buf(str_c(&s), s.len, hex, e);
    names_free(&names);
    str_free(&s);
    return rc;
}

struct hash_entry {
    const char *path;
    char hex[65];
    struct hash_entry *next;
};

void hash_cache_open(struct hash_cache *c)
{
    *c = (struct hash_cache){0};
    arena_init(&c->arena, (size_t)16 << 20);
}

void hash_cache_close(struct hash_cache *c)
{
    arena_free(&c->arena);
    *c = (struct hash_cache){0};
}

struct cost_entry {
    char planned[65];
    struct stage_cost cost;
    struct cost_entry *next;
};

/* What the kind says of a run, once for equal ones. */
static int plan_cost(const struct plan *p, struct node *n, struct err *e)
{
    struct hash_cache *c = n->planned[0] ? p->reg->hashes : NULL;
    for (const struct cost_entry *x = c ? c->cost : NULL; x; x = x->next)
        if (!strcmp(x->planned, n->planned)) {
            n->cost = x->cost;
            return 0;
        }
    TRY(n->kind->plan(p->reg->env, n, &n->cost, e));
    struct cost_entry *x = c ? arena_alloc(&c->arena, sizeof *x) : NULL;
    if (x) {
        *x = (struct cost_entry){.cost = n->cost, .next = c->cost};
        memcpy(x->planned, n->planned, sizeof x->planned);
        c->cost = x;
    }
    return 0;
}

static int cached_hash(const struct plan *p, const char *path, char hex[65], struct err *e)
{
    struct hash_cache *c = p->reg->hashes;
    for (const struct hash_entry *x = c ? c->first : NULL; x; x = x->next)
        if (!strcmp(x->path, path)) {
            memcpy(hex, x->hex, 65);
            return 0;
        }
    TRY(input_hash(path, hex, e));
    struct hash_entry *x = c ? arena_alloc(&c->arena, sizeof *x) : NULL;
    const char *name = x ? arena_strdup(&c->arena, path) : NULL;
    if (name) {
        *x = (struct hash_entry){.path = name, .next = c->first};
        memcpy(x->hex, hex, 65);
        c->first = x;
    }
    return 0;
}

/* The line that stands for a node in its dependants' keys; false when not known yet. whole: its key whatever its kind shows. */
static bool node_identity(const struct node *n, bool whole, char id[65])
{
    if (!n->key[0])
        return false;
    if (whole || !n->kind->by_content) {
        memcpy(id, n->key, 65);
        return true;
    }
    char path[1024];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    bool ok = n->state == RUN_COMPLETE && file_read(node_out(path, n, "identity.txt"), 1 << 20, &s, &ignored) == 0;
    if (ok)
        run_key(str_c(&s), id);
    str_free(&s);
    return ok;
}

/* The hashes of what a comma-separated list of files and folders names; what is not there is the run's error. */
static int key_files(struct plan *p, const char *name, const char *list, struct str *text, struct err *e)
{
    static const char own[] = "experiments/";
    for (const char *s = list; *s; s += strcspn(s, ","), s += *s == ',') {
        char path[1024], hex[65];
        snprintf(path, sizeof path, "%.*s", (int)MIN(strcspn(s, ","), sizeof path - 1), s);
        if (!strncmp(path, own, sizeof own - 1) || (!file_exists(path) && !dir_exists(path)))
            continue;
        TRY(cached_hash(p, path, hex, e));
        str_printf(text, "%s sha256 %s\n", name, hex);
    }
    return 0;
}

static int key_value(struct plan *p, struct node *n, size_t i, struct str *text, bool *known, struct err *e)
{
    const struct param_spec *ps = &n->kind->params[i];
    if (ps->type != PT_REF && ps->type != PT_REFS && ps->type != PT_PATH) {
        str_printf(text, "%s %s\n", ps->name, n->value[i]);
        return ps->files ? key_files(p, ps->name, n->value[i], text, e) : 0;
    }
    if (n->ref[i]) {
        for (size_t k = 0; n->ref[i][k]; k++) {
            char id[65];
            bool have = node_identity(n->ref[i][k], ps->whole, id);
            *known = *known && have;
            str_printf(text, "%s run %s\n", ps->name, have ? id : "?");
        }
        return 0;
    }
    const struct input *in = find_input(p->m, n->value[i], strlen(n->value[i]));
    const char *path = in ? in->path : n->value[i];
    char hex[65], where[1024];
    if (!in && ps->type == PT_PATH && p->m && p->reg->locate && !file_exists(path) && !dir_exists(path) && p->reg->locate(path, where) == 0)
        path = arena_strdup(&p->arena, where);
    n->path[i] = path;
    if (file_exists(path_join(where, path, "OUTPUTS"))) { /* a run directory given by flag */
        struct str s = STR_INIT;
        bool content = !ps->whole && file_exists(path_join(where, path, "out/identity.txt"));
        int rc = file_read(path_join(where, path, content ? "out/identity.txt" : "key.txt"), 1 << 20, &s, e);
        if (rc == 0) {
            run_key(str_c(&s), hex);
            str_printf(text, "%s run %s\n", ps->name, hex);
        }
        str_free(&s);
        return rc;
    }
    if (!file_exists(path) && !dir_exists(path)) {
        if (p->m) { /* a missing file is the run's error, not the plan's: the rest can be planned */
            *known = false;
            str_printf(text, "%s sha256 ?\n", ps->name);
            return 0;
        }
        if (ps->type == PT_PATH)
            return ERR(e, E_INPUT, "'%s' (for '%s') does not exist", path, ps->name);
        str_printf(text, "%s text %s\n", ps->name, path); /* by flag: a spec or folders in place of a run; the stage says what it cannot read */
        return key_files(p, ps->name, path, text, e);
    }
    TRY(cached_hash(p, path, hex, e));
    if (in && in->sha256 && *in->sha256 && strncmp(in->sha256, hex, strlen(in->sha256)))
        return ERR(e, E_INPUT, "input '%s' at '%s': sha256 is %s, the manifest pins %s", in->name, path, hex, in->sha256);
    str_printf(text, "%s sha256 %s\n", ps->name, hex);
    return 0;
}

static bool in_key(const struct node *n, size_t i)
{
    const struct param_spec *ps = &n->kind->params[i];
    return n->value[i] && !ps->free && !(ps->later && !strcmp(n->value[i], ps->def));
}

static int key_text(struct plan *p, struct node *n, struct str *text, bool *known, struct err *e)
{
    str_printf(text, "schema 1\nkind %s\nversion %d\n", n->kind->name, n->kind->version);
    for (size_t i = 0; i < n->kind->n_params; i++) {
        const struct param_spec *ps = &n->kind->params[i];
        if (!n->value[i])
            continue;
        if (in_key(n, i))
            TRY(key_value(p, n, i, text, known, e));
        else if (ps->type == PT_REF || ps->type == PT_REFS || ps->type == PT_PATH) {
            const struct input *in = find_input(p->m, n->value[i], strlen(n->value[i]));
            n->path[i] = in ? in->path : n->value[i];
        }
    }
    return str_ok(text, "key", e);
}

/* Needs those of the nodes before it. An input that is not there stands by its path. */
static int set_planned(struct plan *p, struct node *n, struct err *e)
{
    struct str text = STR_INIT;
    int rc = 0;
    str_printf(&text, "kind %s\nversion %d\n", n->kind->name, n->kind->version);
    for (size_t i = 0; rc == 0 && i < n->kind->n_params; i++) {
        bool known = true;
        if (!in_key(n, i))
            continue;
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            str_printf(&text, "%s plan %s\n", n->kind->params[i].name, n->ref[i][k]->planned);
        if (!n->ref[i])
            rc = key_value(p, n, i, &text, &known, e);
        if (!known)
            str_printf(&text, "%s path %s\n", n->kind->params[i].name, n->path[i] ? n->path[i] : "");
    }
    rc = rc || str_ok(&text, "key", e) ? -1 : 0;
    if (rc == 0)
        run_key(str_c(&text), n->planned);
    str_free(&text);
    return rc;
}

int node_resolve(struct plan *p, struct node *n, bool *known, struct err *e)
{
    struct str text = STR_INIT;
    *known = true;
    int rc = key_text(p, n, &text, known, e);
    if (rc == 0)
        n->lines = arena_strdup(&p->arena, str_c(&text));
    if (rc == 0 && *known) {
        run_key(str_c(&text), n->key);
        if (p->m)
            snprintf(n->dir, sizeof n->dir, "%.900s/%s-%.12s", p->runs, n->kind->name, n->key);
        n->state = run_state(n->dir, n->key);
    } else {
        n->key[0] = 0;
        n->state = RUN_NEW;
    }
    if (rc == 0 && n->kind->plan && n->cost.tokens == 0)
        rc = plan_cost(p, n, e);
    str_free(&text);
    return rc;
}

int plan_single(struct plan *p, const struct registry *reg, const char *kind, const struct flag_value *v, size_t n, const char *out_dir,
                struct err *e)
{
    *p = (struct plan){.reg = reg};
    arena_init(&p->arena, (size_t)64 << 20);
    struct stage *s = arena_alloc(&p->arena, sizeof *s);
    *s = (struct stage){.id = kind, .kind = registry_find(reg, kind), .label = kind};
    if (!s->kind)
        BUG("no stage kind '%s'", kind);
    s->set = arena_array(&p->arena, s->kind->n_params, sizeof *s->set);
    for (size_t i = 0; i < s->kind->n_params; i++) {
        const char *def = s->kind->params[i].def;
        s->set[i] = (struct setting){s->kind->params[i].name, def && *def ? def : NULL, NULL};
        for (size_t k = 0; k < n; k++)
            if (!strcmp(v[k].name, s->set[i].name))
                s->set[i].value = v[k].value;
        if (!s->set[i].value && !def)
            return ERR(e, E_USAGE, "--%s is needed (%s)", s->kind->params[i].name, s->kind->params[i].help);
    }
    struct node *node = add_node(p, s);
    snprintf(node->dir, sizeof node->dir, "%s", out_dir);
    bool known;
    return node_resolve(p, node, &known, e);
}

void node_yaml(const struct node *n, struct str *out)
{
    str_printf(out, "id: %s\nkind: %s\n", n->stage->id, n->kind->name);
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (n->value[i])
            str_printf(out, "%s: %s\n", n->kind->params[i].name, *n->value[i] ? n->value[i] : "\"\"");
}

/* ---- records ---- */

static const char *own_result(struct plan *p, const struct node *n, const char *key)
{
    char path[1024];
    struct jdoc d;
    struct err ignored = ERR_INIT;
    const char *res = NULL;
    if (n->state != RUN_COMPLETE || !file_exists(node_out(path, n, "result.json")) || jdoc_load(&d, path, 1 << 20, &ignored) != 0)
        return NULL;
    const json_t *v = json_object_get(d.root, key);
    char buf[32];
    if (json_is_string(v))
        res = arena_strdup(&p->arena, json_string_value(v));
    else if (json_is_integer(v))
        res = arena_printf(&p->arena, "%" PRId64, (int64_t)json_integer_value(v));
    else if (json_is_real(v)) {
        fmt_f64(buf, json_real_value(v));
        res = arena_strdup(&p->arena, buf);
    } else if (json_is_boolean(v))
        res = json_is_true(v) ? "true" : "false";
    jdoc_free(&d);
    return res;
}

const struct node *node_of_kind(const struct node *n, const char *kind)
{
    if (!strcmp(n->kind->name, kind))
        return n;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++) {
            const struct node *f = node_of_kind(n->ref[i][k], kind);
            if (f)
                return f;
        }
    return NULL;
}

const char *node_result(struct plan *p, const struct node *n, const char *name)
{
    const char *dot = strchr(name, '.');
    if (!dot)
        return own_result(p, n, name);
    char *kind = arena_strndup(&p->arena, name, (size_t)(dot - name));
    const struct node *of = kind ? node_of_kind(n, kind) : NULL;
    if (of && !strcmp(dot + 1, "seconds"))
        return arena_printf(&p->arena, "%.1f", run_seconds(of->dir));
    return of ? own_result(p, of, dot + 1) : NULL;
}

const char *node_setting(const struct node *n, const char *name)
{
    for (size_t i = 0; i < n->kind->n_params; i++) {
        const struct param_spec *p = &n->kind->params[i];
        if (strcmp(p->name, name) || !n->value[i])
            continue;
        const struct node *other = p->instead ? node_ref(n, p->instead) : NULL;
        return other ? node_setting(other, name) : n->value[i];
    }
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++) {
            const char *v = node_setting(n->ref[i][k], name);
            if (v)
                return v;
        }
    return NULL;
}
