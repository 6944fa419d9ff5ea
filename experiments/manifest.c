/* Manifest reading: YAML tree -> typed stages at one scale, with every problem reported at once. */
#include "experiments/manifest.h"

#include <stdio.h>
#include <string.h>

#include "core/fs.h"
#include "core/jwrite.h"

static const char *const scale_words[] = {"ci", "tiny", "small", "paper", NULL};
static const char *const collection_keys[] = {"dash", "name", "title", "caption", "manifests"};
static const char *const top_keys[] = {"dash",   "name",   "title",   "caption", "base",     "inputs",
                                       "scales", "stages", "reports", "checks",  "manifests"};

const struct stage_kind *registry_find(const struct registry *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->kinds[i]->name, name))
            return r->kinds[i];
    return NULL;
}

/* ---- values ---- */

static const char *canon_number(struct arena *a, const struct param_spec *p, const char *text, bool integer, char why[256])
{
    double v;
    int64_t i = 0;
    if (integer ? !parse_i64(text, &i) : !parse_f64(text, &v)) {
        char meant[64];
        if (number_meant(text, meant))
            snprintf(why, 256, "'%s' is not a number; did you mean %s? k is 1000, M is 1000k, G is 1000M", text, meant);
        else
            snprintf(why, 256, "'%.60s' is not %s%s", text, integer ? "an integer" : "a finite number",
                     strcmp(text, "None") ? "" : " (write null or drop the key)");
        return NULL;
    }
    if (integer)
        v = (double)i;
    if (p->lo < p->hi && (v < p->lo || v > p->hi)) {
        snprintf(why, 256, "%s is outside %.*g..%.*g%s%s", text, integer ? 17 : 6, p->lo, integer ? 17 : 6, p->hi, p->unit ? " " : "",
                 p->unit ? p->unit : "");
        return NULL;
    }
    if (integer)
        return arena_printf(a, "%" PRId64, i);
    char buf[32];
    fmt_f64(buf, v);
    return arena_strdup(a, buf);
}

static const char *canon_bool(struct arena *a, const char *text, char why[256])
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (!strcmp(text, yes[i]))
            return arena_strdup(a, "true");
        if (!strcmp(text, no[i]))
            return arena_strdup(a, "false");
    }
    snprintf(why, 256, "'%.60s' is not true or false", text);
    return NULL;
}

static const char *canon_word(struct arena *a, const struct param_spec *p, const char *text, char why[256])
{
    size_t n = 0;
    for (; p->words[n]; n++)
        if (!strcmp(p->words[n], text))
            return arena_strdup(a, text);
    const char *near = nearest_word(text, p->words, n);
    int at = snprintf(why, 256, "'%.40s' is not one of", text);
    for (size_t i = 0; i < n && at < 256; i++) {
        bool cut = at > 110 && i + 1 < n; /* many problems share one message */
        at += snprintf(why + at, 256 - (size_t)at, " %s", cut ? "..." : p->words[i]);
        if (cut)
            break;
    }
    if (near && at < 220)
        snprintf(why + at, 256 - (size_t)at, "; did you mean '%s'?", near);
    return NULL;
}

const char *param_canon(struct arena *a, const struct param_spec *p, const char *text, char why[256])
{
    switch (p->type) {
    case PT_INT:
        return canon_number(a, p, text, true, why);
    case PT_NUM:
        return canon_number(a, p, text, false, why);
    case PT_BOOL:
        return canon_bool(a, text, why);
    case PT_WORD:
        return canon_word(a, p, text, why);
    case PT_STR:
    case PT_PATH:
    case PT_REF:
    case PT_STRS:
    case PT_REFS:
        if (strpbrk(text, "\n|")) { /* they part the values of a matrix and the points of a stage */
            snprintf(why, 256, "a line break or '|' is not allowed here");
            return NULL;
        }
        if (p->type == PT_STRS || p->type == PT_REFS)
            break;
        return arena_strdup(a, text);
    case PT_INTS:
    case PT_NUMS:
        break;
    }
    /* lists: comma-separated, each item canonical */
    struct str out = STR_INIT;
    const char *s = text, *res = NULL;
    bool ok = true;
    while (ok && *s) {
        size_t n = strcspn(s, ",");
        while (n && *s == ' ')
            s++, n--;
        size_t m = n;
        while (m && s[m - 1] == ' ')
            m--;
        char *item = arena_strndup(a, s, m);
        const char *c = p->type == PT_INTS ? canon_number(a, p, item, true, why) : p->type == PT_NUMS ? canon_number(a, p, item, false, why)
            : item;
        if (c && m == 0) {
            snprintf(why, 256, "empty item in the list '%.60s'", text);
            c = NULL;
        }
        ok = c != NULL;
        if (ok)
            str_printf(&out, "%s%s", out.len ? "," : "", c);
        s += n;
        s += *s == ',';
    }
    if (ok)
        res = arena_strdup(a, str_c(&out));
    str_free(&out);
    return res;
}

/* ---- reading ---- */

struct reader {
    struct manifest *m;
    const struct registry *reg;
    struct yproblems *pr;
    const struct ynode *scale_node;
};

static const char *scalar(struct reader *r, const struct ynode *n, const char *what)
{
    if (n && n->kind == Y_SCALAR)
        return n->s;
    if (n)
        y_problem(r->pr, n, "%s must be a single value", what);
    return NULL;
}

static bool flag(struct reader *r, const struct ynode *n, const char *what)
{
    const char *s = scalar(r, n, what);
    if (s && strcmp(s, "true") && strcmp(s, "false"))
        y_problem(r->pr, n, "%s must be true or false, not '%s'", what, s);
    return s && !strcmp(s, "true");
}

static void unknown_key(struct reader *r, const struct ynode *key, const char *const *words, size_t n, const char *where)
{
    const char *near = nearest_word(key->s, words, n);
    y_problem(r->pr, key, "unknown key '%s' in %s%s%s%s", key->s, where, near ? "; did you mean '" : "", near ? near : "",
              near ? "'?" : "");
}

static void allow_keys(struct reader *r, const struct ynode *map, const char *const *words, size_t n, const char *where)
{
    for (size_t i = 0; i < map->n; i++) {
        bool ok = false;
        for (size_t k = 0; k < n; k++)
            ok = ok || !strcmp(map->key[i]->s, words[k]);
        if (!ok)
            unknown_key(r, map->key[i], words, n, where);
    }
}

/* A list in YAML or "a,b" in a scalar, as comma-separated text. */
static const char *list_text(struct reader *r, const struct ynode *v, char sep)
{
    if (v->kind == Y_SCALAR)
        return v->s;
    struct str s = STR_INIT;
    for (size_t i = 0; v->kind == Y_SEQ && i < v->n; i++) {
        if (v->item[i]->kind != Y_SCALAR)
            y_problem(r->pr, v->item[i], "a list of lists is not allowed here");
        else
            str_printf(&s, "%s%s", i ? (char[]){sep, 0} : "", v->item[i]->s);
    }
    const char *res = arena_strdup(&r->m->arena, str_c(&s));
    str_free(&s);
    return res;
}

static size_t param_index(const struct stage_kind *k, const char *name)
{
    for (size_t i = 0; i < k->n_params; i++)
        if (!strcmp(k->params[i].name, name))
            return i;
    return k->n_params;
}

static void set_param(struct reader *r, struct stage *s, const struct ynode *key, const char *name, const struct ynode *v)
{
    size_t i = param_index(s->kind, name);
    if (i == s->kind->n_params) {
        const char *words[96];
        size_t n = 0;
        for (; n < s->kind->n_params && n < 90; n++)
            words[n] = s->kind->params[n].name;
        words[n++] = "matrix";
        words[n++] = "points";
        words[n++] = "label";
        words[n++] = "borrow";
        char where[160];
        snprintf(where, sizeof where, "stage '%.60s' of kind '%s'", s->id, s->kind->name);
        struct ynode named = *key;
        named.s = name;
        unknown_key(r, &named, words, n, where);
        return;
    }
    const struct param_spec *p = &s->kind->params[i];
    if (v->kind == Y_SCALAR && !v->quoted && (!strcmp(v->s, "null") || !strcmp(v->s, "~"))) {
        s->set[i].value = p->def && *p->def ? p->def : NULL;
        return;
    }
    bool list = p->type == PT_INTS || p->type == PT_NUMS || p->type == PT_STRS || p->type == PT_REFS || p->fan;
    if (v->kind != Y_SCALAR && !(list && v->kind == Y_SEQ)) {
        y_problem(r->pr, v, "'%s' must be %s", name, list ? "a list" : "a single value");
        return;
    }
    char why[256];
    const char *c = param_canon(&r->m->arena, p, list_text(r, v, ','), why);
    if (!c)
        y_problem(r->pr, v, "'%s': %s", name, why);
    s->set[i].value = c;
    s->set[i].at = v;
}

/* One "name: value" of matrix or points: checked against the kind, canonical. */
static const char *vary_value(struct reader *r, struct stage *s, const struct ynode *key, const struct ynode *v)
{
    size_t i = param_index(s->kind, key->s);
    if (i == s->kind->n_params) {
        set_param(r, s, key, key->s, v); /* reports the unknown name */
        return NULL;
    }
    char why[256];
    const char *c = param_canon(&r->m->arena, &s->kind->params[i], list_text(r, v, ','), why);
    if (!c)
        y_problem(r->pr, v, "'%s': %s", key->s, why);
    return c;
}

static void read_matrix(struct reader *r, struct stage *s, const struct ynode *v)
{
    if (v->kind != Y_MAP) {
        y_problem(r->pr, v, "'matrix' must be a map of parameter: [values]");
        return;
    }
    s->matrix = arena_array(&r->m->arena, v->n, sizeof *s->matrix);
    s->n_matrix = v->n;
    for (size_t i = 0; i < v->n; i++) {
        struct str vals = STR_INIT;
        const struct ynode *list = v->item[i];
        for (size_t k = 0; list->kind == Y_SEQ && k < list->n; k++) {
            const char *c = vary_value(r, s, v->key[i], list->item[k]);
            str_printf(&vals, "%s%s", k ? "|" : "", c ? c : "");
        }
        if (list->kind != Y_SEQ || list->n == 0)
            y_problem(r->pr, list, "matrix parameter '%s' needs a list of values", v->key[i]->s);
        s->matrix[i] = (struct setting){v->key[i]->s, arena_strdup(&r->m->arena, str_c(&vals)), v->key[i]};
        str_free(&vals);
    }
}

static void read_points(struct reader *r, struct stage *s, const struct ynode *v)
{
    if (v->kind != Y_SEQ || v->n == 0) {
        y_problem(r->pr, v, "'points' must be a list of maps, one for each run");
        return;
    }
    s->points = arena_array(&r->m->arena, v->n, sizeof *s->points);
    s->n_points = v->n;
    for (size_t i = 0; i < v->n; i++) {
        const struct ynode *row = v->item[i];
        struct str vals = STR_INIT;
        for (size_t k = 0; row->kind == Y_MAP && k < row->n; k++) {
            const char *c = vary_value(r, s, row->key[k], row->item[k]);
            str_printf(&vals, "%s%s=%s", k ? "|" : "", row->key[k]->s, c ? c : "");
        }
        if (row->kind != Y_MAP)
            y_problem(r->pr, row, "each of 'points' must be a map of parameter: value");
        s->points[i] = (struct setting){"", arena_strdup(&r->m->arena, str_c(&vals)), row};
        str_free(&vals);
    }
}

/* Whether matrix or every row of points gives the parameter. */
static bool varies(const struct stage *s, const char *name)
{
    for (size_t i = 0; i < s->n_matrix; i++)
        if (!strcmp(s->matrix[i].name, name))
            return true;
    size_t n = strlen(name), rows = 0;
    for (size_t i = 0; i < s->n_points; i++) {
        bool here = false;
        for (const char *p = s->points[i].value; p && *p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            here = here || (!strncmp(p, name, n) && p[n] == '=');
        rows += here;
    }
    return rows > 0 && rows == s->n_points;
}

/* Ids stand in lists, in `STAGE.parameter` and on the command line. */
static void check_id(struct reader *r, const struct ynode *at, const char *id)
{
    if (!*id || strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(id))
        y_problem(r->pr, at, "stage id '%s': letters, digits, '-' and '_' only", id);
}

static struct stage *find_stage(struct manifest *m, const char *id, size_t n)
{
    for (size_t i = 0; i < m->n_stages; i++)
        if (strlen(m->stages[i].id) == n && !strncmp(m->stages[i].id, id, n))
            return &m->stages[i];
    return NULL;
}

/* `extends: STAGE`: an earlier stage whose kind and parameters, as they stand at this scale, this one begins with; its label, matrix and
 * points are not taken. */
static const struct stage *read_extends(struct reader *r, const struct stage *s, const struct ynode *n, const char *kind)
{
    const struct ynode *at = y_get(n, "extends");
    const char *name = at ? scalar(r, at, "'extends'") : NULL;
    if (!name)
        return NULL;
    const struct stage *from = find_stage(r->m, name, strlen(name));
    if (!from || !from->kind)
        y_problem(r->pr, at, "'extends' of stage '%s' names '%s', which is no stage before it", s->id, name);
    else if (kind && strcmp(kind, from->kind->name) != 0)
        y_problem(r->pr, at, "stage '%s' of kind '%s' cannot extend '%s', which is of kind '%s'", s->id, kind, name, from->kind->name);
    else
        return from;
    return NULL;
}

/* What the parameters are before the stage's own keys: those of `from`, else the defaults. */
static void first_settings(struct reader *r, struct stage *s, const struct stage *from, const struct ynode *at)
{
    s->set = arena_array(&r->m->arena, s->kind->n_params, sizeof *s->set);
    for (size_t i = 0; s->set && i < s->kind->n_params; i++) {
        const char *def = s->kind->params[i].def;
        s->set[i] = (struct setting){s->kind->params[i].name, from ? from->set[i].value : def && *def ? def : NULL, from ? at : NULL};
    }
}

static void read_stage(struct reader *r, struct stage *s, const struct ynode *n)
{
    *s = (struct stage){.id = "?", .at = n};
    if (n->kind != Y_MAP) {
        y_problem(r->pr, n, "a stage must be a map");
        return;
    }
    s->id = scalar(r, y_get(n, "id"), "'id'");
    const char *kind = scalar(r, y_get(n, "kind"), "'kind'");
    const struct stage *from = s->id ? read_extends(r, s, n, kind) : NULL;
    if (!kind && from)
        kind = from->kind->name;
    if (!s->id || !kind) {
        if (!s->id || !y_get(n, "extends")) /* a wrong 'extends' has been said */
            y_problem(r->pr, n, "a stage needs 'id' and 'kind' (or 'extends')");
        s->id = s->id ? s->id : "?";
        return;
    }
    check_id(r, y_get(n, "id"), s->id);
    s->label = s->id;
    s->kind = registry_find(r->reg, kind);
    if (!s->kind) {
        const char *words[64];
        size_t k = 0;
        for (; k < r->reg->n && k < ARRAY_LEN(words); k++)
            words[k] = r->reg->kinds[k]->name;
        const char *near = nearest_word(kind, words, k);
        y_problem(r->pr, y_get(n, "kind"), "unknown stage kind '%s'%s%s%s", kind, near ? "; did you mean '" : "", near ? near : "",
                  near ? "'?" : "");
        return;
    }
    first_settings(r, s, from, n);
    for (size_t i = 0; s->set && i < n->n; i++) {
        const char *key = n->key[i]->s;
        if (!strcmp(key, "id") || !strcmp(key, "kind") || !strcmp(key, "extends"))
            continue;
        if (!strcmp(key, "label"))
            s->label = scalar(r, n->item[i], "'label'");
        else if (!strcmp(key, "borrow"))
            s->borrow = flag(r, n->item[i], "'borrow'");
        else if (!strcmp(key, "matrix"))
            read_matrix(r, s, n->item[i]);
        else if (!strcmp(key, "points"))
            read_points(r, s, n->item[i]);
        else
            set_param(r, s, n->key[i], key, n->item[i]);
    }
}

/* `inputs.NAME: PATH`, `inputs.NAME.path`, `.sha256` and `.get` of a scale */
static void override_input(struct reader *r, const struct ynode *key, const struct ynode *v)
{
    const char *name = key->s + 7, *field = strchr(name, '.');
    size_t n = field ? (size_t)(field - name) : strlen(name);
    bool hash = field && !strcmp(field, ".sha256");
    bool get = field && !strcmp(field, ".get");
    if (field && !hash && !get && strcmp(field, ".path")) {
        y_problem(r->pr, key, "'%s': an input has 'path', 'sha256' and 'get'", key->s);
        return;
    }
    for (size_t k = 0; k < r->m->n_inputs; k++) {
        struct input *in = &r->m->inputs[k];
        if (strlen(in->name) != n || strncmp(in->name, name, n))
            continue;
        *(hash ? &in->sha256 : get ? &in->get : &in->path) = scalar(r, v, "an input");
        return;
    }
    y_problem(r->pr, key, "'%s' names no input of this manifest", key->s);
}

static void read_skip(struct reader *r, const struct ynode *v)
{
    if (v->kind != Y_SEQ)
        y_problem(r->pr, v, "'skip' must be a list of stages");
    for (size_t k = 0; v->kind == Y_SEQ && k < v->n; k++) {
        struct stage *s = v->item[k]->kind == Y_SCALAR ? find_stage(r->m, v->item[k]->s, strlen(v->item[k]->s)) : NULL;
        if (s)
            s->skipped = true;
        else
            y_problem(r->pr, v->item[k], "'skip' names no stage of this manifest");
    }
}

/* What the scale says of one stage: `STAGE.parameter`, `.matrix`, `.points`, `.label`. */
static void scale_stage(struct reader *r, struct stage *s)
{
    const struct ynode *sc = r->scale_node;
    for (size_t i = 0; s->set && sc && sc->kind == Y_MAP && i < sc->n; i++) {
        const struct ynode *key = sc->key[i], *v = sc->item[i];
        const char *dot = strchr(key->s, '.');
        if (!dot || strlen(s->id) != (size_t)(dot - key->s) || strncmp(s->id, key->s, strlen(s->id)) != 0)
            continue;
        if (!strcmp(dot + 1, "matrix"))
            read_matrix(r, s, v);
        else if (!strcmp(dot + 1, "points"))
            read_points(r, s, v);
        else if (!strcmp(dot + 1, "label"))
            s->label = scalar(r, v, "'label'");
        else
            set_param(r, s, key, dot + 1, v);
    }
}

static void read_dtype(struct reader *r, const struct ynode *v)
{
    const char *s = scalar(r, v, "'dtype'");
    if (s && strcmp(s, "f32") && strcmp(s, "bf16"))
        y_problem(r->pr, v, "'dtype' is f32 or bf16 (what a GPU computes in), not '%.40s'", s);
    r->m->dtype = s ? s : "";
}

/* The rest of a scale, and keys that name nothing: `scales: {ci: {align.tokens: 100k, inputs.teacher: PATH, skip: [a, b]}}` */
static void scale_rest(struct reader *r)
{
    const struct ynode *sc = r->scale_node;
    for (size_t i = 0; sc && sc->kind == Y_MAP && i < sc->n; i++) {
        const struct ynode *key = sc->key[i], *v = sc->item[i];
        const char *dot = strchr(key->s, '.');
        if (!strcmp(key->s, "skip"))
            read_skip(r, v);
        else if (!strcmp(key->s, "caption"))
            r->m->caption = scalar(r, v, "'caption'");
        else if (!strcmp(key->s, "dtype"))
            read_dtype(r, v);
        else if (dot && !strncmp(key->s, "inputs.", 7))
            override_input(r, key, v);
        else if (!dot || !find_stage(r->m, key->s, (size_t)(dot - key->s)))
            y_problem(r->pr, key, "'%s' names no stage; a scale holds 'STAGE.parameter', 'inputs.NAME', 'dtype', 'caption' or 'skip'", key->s);
    }
}

/* A setting of any kind: a run is also told from others by what it refers to, and by its label. */
static bool param_named(const struct registry *reg, const char *name, size_t len)
{
    for (size_t k = 0; k < reg->n; k++)
        for (size_t i = 0; i < reg->kinds[k]->n_params; i++)
            if (strlen(reg->kinds[k]->params[i].name) == len && !strncmp(reg->kinds[k]->params[i].name, name, len))
                return true;
    return len == 5 && !strncmp(name, "label", len);
}

/* Every stage or input that one value of a reference names, and the settings after '@'. */
static void check_refs(struct reader *r, const struct stage *s, const struct param_spec *p, const char *ids, size_t len,
                       const struct ynode *at)
{
    bool list = memchr(ids, ',', len) != NULL;
    for (const char *id = ids; id < ids + len;) {
        size_t whole = strcspn(id, ",|"), n = MIN(whole, strcspn(id, "@"));
        const struct stage *dep = find_stage(r->m, id, n);
        bool is_input = false;
        for (size_t k = 0; k < r->m->n_inputs; k++)
            is_input = is_input || (strlen(r->m->inputs[k].name) == n && !strncmp(r->m->inputs[k].name, id, n));
        if (!dep && !is_input)
            y_problem(r->pr, at, "'%s' of stage '%s' refers to '%.*s', which is no stage or input", p->name, s->id, (int)n, id);
        else if (!dep && list)
            y_problem(r->pr, at, "'%s' of stage '%s': input '%.*s' cannot stand in a list; give it a stage of its own", p->name, s->id,
                      (int)n, id);
        else if (dep && dep >= s)
            y_problem(r->pr, at, "stage '%s' refers to '%.*s', which does not stand before it (so there can be no cycle)", s->id, (int)n,
                      id);
        else if (dep && dep->skipped && p->type == PT_REF && !p->fan && !s->skipped)
            y_problem(r->pr, at, "stage '%s' needs '%.*s', which scale '%s' skips", s->id, (int)n, id, r->m->scale);
        for (const char *f = id + n; dep && dep->kind && f < id + whole; f += 1 + strcspn(f + 1, "@,|")) {
            size_t part = strcspn(f + 1, "@,|"), eq = strcspn(f + 1, "=");
            if (eq >= part || !param_named(r->reg, f + 1, eq))
                y_problem(r->pr, at, "'%s' of stage '%s': '%.*s' is no setting of a stage (STAGE@name=value)", p->name, s->id, (int)part,
                          f + 1);
        }
        id += whole + (id[whole] == ',');
    }
}

/* The same for what matrix and points say about a reference. */
static void check_varying_refs(struct reader *r, const struct stage *s, const struct param_spec *p)
{
    for (size_t i = 0; i < s->n_matrix; i++) {
        const char *v = s->matrix[i].value;
        for (bool mine = !strcmp(s->matrix[i].name, p->name); mine && *v; v += strcspn(v, "|"), v += *v == '|')
            check_refs(r, s, p, v, strcspn(v, "|"), s->matrix[i].at);
    }
    size_t n = strlen(p->name);
    for (size_t i = 0; i < s->n_points; i++)
        for (const char *v = s->points[i].value; v && *v; v += strcspn(v, "|"), v += *v == '|')
            if (!strncmp(v, p->name, n) && v[n] == '=')
                check_refs(r, s, p, v + n + 1, strcspn(v + n + 1, "|"), s->points[i].at);
}

static void check_stage(struct reader *r, size_t at)
{
    struct stage *s = &r->m->stages[at];
    for (size_t i = 0; i < at; i++)
        if (!strcmp(r->m->stages[i].id, s->id) && strcmp(s->id, "?"))
            y_problem(r->pr, s->at, "two stages are called '%s'", s->id);
    for (size_t i = 0; s->kind && i < s->kind->n_params; i++) {
        const struct param_spec *p = &s->kind->params[i];
        if (!s->set[i].value && !p->def && !varies(s, p->name) && !s->skipped)
            y_problem(r->pr, s->at, "stage '%s' of kind '%s' needs '%s' (%s)", s->id, s->kind->name, p->name, p->help);
        if (p->type != PT_REF && p->type != PT_REFS)
            continue;
        if (s->set[i].value)
            check_refs(r, s, p, s->set[i].value, strlen(s->set[i].value), s->set[i].at ? s->set[i].at : s->at);
        check_varying_refs(r, s, p);
    }
}

static void read_inputs(struct reader *r, const struct ynode *n)
{
    if (!n)
        return;
    if (n->kind != Y_MAP) {
        y_problem(r->pr, n, "'inputs' must be a map of name: {path, sha256}");
        return;
    }
    size_t had = r->m->n_inputs;
    struct input *all = arena_array(&r->m->arena, had + n->n, sizeof *all);
    if (!all)
        return;
    if (had)
        memcpy(all, r->m->inputs, had * sizeof *all);
    r->m->inputs = all;
    r->m->n_inputs = had + n->n;
    static const char *const keys[] = {"path", "sha256", "get"};
    for (size_t i = 0; i < n->n; i++) {
        const struct ynode *v = n->item[i];
        struct input *in = &r->m->inputs[had + i];
        *in = (struct input){.name = n->key[i]->s, .path = "", .sha256 = "", .get = "", .at = v};
        if (v->kind == Y_MAP) {
            allow_keys(r, v, keys, ARRAY_LEN(keys), "an input");
            if (y_get(v, "path"))
                in->path = scalar(r, y_get(v, "path"), "'path'");
            if (y_get(v, "sha256"))
                in->sha256 = scalar(r, y_get(v, "sha256"), "'sha256'");
            if (y_get(v, "get"))
                in->get = scalar(r, y_get(v, "get"), "'get'");
        } else {
            in->path = scalar(r, v, "an input");
        }
        if (!in->path || !*in->path)
            y_problem(r->pr, v, "input '%s' needs a path", in->name);
    }
}

static void read_reports(struct reader *r, const struct ynode *n)
{
    if (!n)
        return;
    if (n->kind != Y_SEQ) {
        y_problem(r->pr, n, "'reports' must be a list");
        return;
    }
    r->m->reports = arena_array(&r->m->arena, n->n, sizeof *r->m->reports);
    for (size_t i = 0; i < n->n; i++) {
        const struct ynode *v = n->item[i];
        const char *kind = v->kind == Y_MAP ? scalar(r, y_get(v, "kind"), "'kind'") : NULL;
        const char *name = v->kind == Y_MAP ? scalar(r, y_get(v, "name"), "'name'") : NULL;
        if (!kind || !name) {
            y_problem(r->pr, v, "a report needs 'kind' and 'name'");
            continue;
        }
        bool ok = false;
        for (size_t k = 0; k < r->reg->n_report_kinds; k++)
            ok = ok || !strcmp(r->reg->report_kinds[k], kind);
        if (!ok) {
            const char *near = nearest_word(kind, r->reg->report_kinds, r->reg->n_report_kinds);
            y_problem(r->pr, y_get(v, "kind"), "unknown report kind '%s'%s%s%s", kind, near ? "; did you mean '" : "", near ? near : "",
                      near ? "'?" : "");
        }
        for (size_t k = 0; k < r->m->n_reports; k++)
            if (!strcmp(r->m->reports[k].name, name))
                y_problem(r->pr, v, "two reports are called '%s'", name);
        const struct ynode *title = y_get(v, "title");
        r->m->reports[r->m->n_reports++] = (struct report){kind, name, title ? scalar(r, title, "'title'") : r->m->title, v};
    }
}

/* Inputs, stages and scale of one document, after what its base has put there. */
static void read_parts(struct reader *r, const struct ynode *root, bool alone)
{
    struct manifest *m = r->m;
    read_inputs(r, y_get(root, "inputs"));
    const struct ynode *st = y_get(root, "stages"), *sc = y_get(root, "scales");
    if (st ? st->kind != Y_SEQ || st->n == 0 : alone) {
        y_problem(r->pr, st ? st : root, "'stages' must be a list with at least one stage");
        return;
    }
    for (size_t i = 0; sc && sc->kind == Y_MAP && i < sc->n; i++) {
        bool known = false;
        for (size_t k = 0; scale_words[k]; k++)
            known = known || !strcmp(scale_words[k], sc->key[i]->s);
        if (!known)
            unknown_key(r, sc->key[i], scale_words, 4, "'scales'");
    }
    r->scale_node = sc ? y_get(sc, m->scale) : NULL;
    if (sc && !r->scale_node) {
        struct str has = STR_INIT;
        for (size_t i = 0; sc->kind == Y_MAP && i < sc->n; i++)
            str_printf(&has, " %s", sc->key[i]->s);
        y_problem(r->pr, sc, "this manifest has no scale '%s'; it has:%s", m->scale, str_c(&has));
        str_free(&has);
        return; /* the rest is not written for it */
    }
    size_t had = m->n_stages, more = st ? st->n : 0;
    struct stage *all = arena_array(&m->arena, had + more, sizeof *all);
    if (!all)
        return;
    if (had)
        memcpy(all, m->stages, had * sizeof *all);
    m->stages = all;
    for (size_t i = 0; i < had; i++)
        scale_stage(r, &m->stages[i]);
    for (size_t i = 0; i < more; i++) { /* each is at its scale before another can extend it */
        read_stage(r, &m->stages[had + i], st->item[i]);
        m->n_stages = had + i + 1;
        scale_stage(r, &m->stages[had + i]);
    }
    scale_rest(r);
    for (size_t i = had; i < m->n_stages; i++)
        check_stage(r, i);
}

/* `base: FILE` (beside this one): its inputs, scales and stages come first; its reports are not taken. */
static int read_base(struct reader *r, const struct ydoc *doc, int depth, struct err *e)
{
    const struct ynode *at = doc->root->kind == Y_MAP ? y_get(doc->root, "base") : NULL;
    char path[1024];
    struct str text = STR_INIT;
    if (!at)
        return 0;
    if (at->kind != Y_SCALAR || strchr(at->s, '/') || depth == 4)
        return ERR(e, E_USAGE, "%s:%d:%d: 'base' is the name of a manifest in the same folder, at most 4 of them in a chain", doc->file,
                   at->line, at->col);
    const char *slash = strrchr(doc->file, '/');
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - doc->file + 1) : 0, doc->file, at->s);
    struct ydoc *base = arena_alloc(&r->m->arena, sizeof *base);
    const char *name = arena_strdup(&r->m->arena, path);
    if (!base || !name)
        return arena_ok(&r->m->arena, "manifest", e);
    if (ydoc_load(base, &r->m->arena, name, e) != 0)
        return err_wrap(e, "%s:%d:%d: base", doc->file, at->line, at->col);
    TRY(read_base(r, base, depth + 1, e));
    struct yproblems pr = {.doc = base, .out = &text}, *own = r->pr;
    r->pr = &pr;
    if (base->root->kind == Y_MAP)
        read_parts(r, base->root, y_get(base->root, "base") == NULL);
    r->pr = own;
    int rc = y_finish(&pr, e);
    str_free(&text);
    for (size_t i = 0; i < r->m->n_stages; i++)
        r->m->stages[i].base = true;
    r->m->caption = NULL;
    return rc;
}

/* A number of a check: *has whether it is there. */
static void check_number(struct reader *r, const struct ynode *map, const char *key, double *v, bool *has)
{
    const struct ynode *n = y_get(map, key);
    *has = false;
    if (!n)
        return;
    const char *s = scalar(r, n, key);
    if (s && !parse_f64(s, v))
        y_problem(r->pr, n, "'%s': '%.60s' is not a finite number", key, s);
    *has = true;
}

static void read_check(struct reader *r, struct check *c, const struct ynode *n)
{
    struct {
        const char *key, **dst;
    } text[] = {{"table", &c->table}, {"row", &c->row}, {"column", &c->column}, {"above", &c->above}, {"against", &c->against}};
    bool within;
    *c = (struct check){.at = n};
    for (size_t i = 0; i < ARRAY_LEN(text); i++) {
        const struct ynode *v = y_get(n, text[i].key);
        const char *s = v ? scalar(r, v, text[i].key) : NULL;
        *text[i].dst = s ? s : "";
    }
    check_number(r, n, "min", &c->min, &c->has_min);
    check_number(r, n, "max", &c->max, &c->has_max);
    check_number(r, n, "within", &c->within, &within);
    if (!*c->table)
        y_problem(r->pr, n, "a check needs 'table', the name of a report of this manifest");
    if (*c->against ? !within || c->within < 0 || *c->row || *c->column || *c->above || c->has_min || c->has_max
                    : !*c->row || !*c->column || within || !(c->has_min || c->has_max || *c->above))
        y_problem(r->pr, n, "a check is {table, row, column, min and/or max and/or above} or {table, against, within}");
    if (c->has_min && c->has_max && c->min > c->max)
        y_problem(r->pr, n, "'min' %g is above 'max' %g", c->min, c->max);
}

static void read_checks(struct reader *r, const struct ynode *n)
{
    static const char *const keys[] = {"table", "row", "column", "min", "max", "above", "against", "within", "scale"};
    if (!n)
        return;
    if (n->kind != Y_SEQ) {
        y_problem(r->pr, n, "'checks' must be a list");
        return;
    }
    r->m->checks = arena_array(&r->m->arena, n->n, sizeof *r->m->checks);
    for (size_t i = 0; r->m->checks && i < n->n; i++) {
        const struct ynode *v = n->item[i];
        if (v->kind != Y_MAP) {
            y_problem(r->pr, v, "a check must be a map");
            continue;
        }
        allow_keys(r, v, keys, ARRAY_LEN(keys), "a check");
        const struct ynode *sc = y_get(v, "scale");
        const char *scale = sc ? scalar(r, sc, "'scale'") : NULL;
        bool known = !scale;
        for (size_t k = 0; scale && scale_words[k]; k++)
            known = known || !strcmp(scale_words[k], scale);
        if (!known)
            y_problem(r->pr, sc, "unknown scale '%.60s'; there are ci, tiny, small and paper", scale);
        struct check c;
        read_check(r, &c, v);
        if (!scale || !strcmp(scale, r->m->scale))
            r->m->checks[r->m->n_checks++] = c;
    }
}

/* `manifests: [FILE, ...]`: files in the same folder, each once. */
static void read_collection(struct reader *r, const struct ynode *n)
{
    struct manifest *m = r->m;
    const char *slash = strrchr(m->path, '/');
    if (n->kind != Y_SEQ || n->n == 0) {
        y_problem(r->pr, n, "'manifests' must be a list with at least one manifest");
        return;
    }
    m->parts = arena_array(&m->arena, n->n, sizeof *m->parts);
    for (size_t i = 0; m->parts && i < n->n; i++) {
        const char *file = scalar(r, n->item[i], "a manifest"), *path;
        if (!file || !*file || strchr(file, '/')) {
            y_problem(r->pr, n->item[i], "'manifests' holds names of files in the same folder");
            continue;
        }
        path = arena_printf(&m->arena, "%.*s%s", slash ? (int)(slash - m->path + 1) : 0, m->path, file);
        if (!path)
            return;
        for (size_t k = 0; k < m->n_parts; k++)
            if (!strcmp(m->parts[k], path))
                y_problem(r->pr, n->item[i], "'%s' stands twice in this collection", file);
        if (!file_exists(path))
            y_problem(r->pr, n->item[i], "'%s' does not exist", path);
        m->parts[m->n_parts++] = path;
    }
}

static void read_all(struct reader *r, const struct ynode *root)
{
    struct manifest *m = r->m;
    if (root->kind != Y_MAP) {
        y_problem(r->pr, root, "a manifest must be a map");
        return;
    }
    const struct ynode *parts = y_get(root, "manifests");
    allow_keys(r, root, parts ? collection_keys : top_keys, parts ? ARRAY_LEN(collection_keys) : ARRAY_LEN(top_keys),
               parts ? "a collection of manifests" : "the manifest");
    const struct ynode *ver = y_get(root, "dash");
    const char *v = ver ? scalar(r, ver, "'dash'") : NULL;
    if (!v || strcmp(v, "1"))
        y_problem(r->pr, ver ? ver : root, "'dash: 1' (the schema version) is needed%s%s", v ? ", found " : "", v ? v : "");
    m->name = scalar(r, y_get(root, "name"), "'name'");
    m->title = scalar(r, y_get(root, "title"), "'title'");
    if (!m->name || !*m->name || strspn(m->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(m->name))
        y_problem(r->pr, root, "'name' is needed: lower-case letters, digits and '-'");
    m->title = m->title ? m->title : m->name;
    m->caption = y_get(root, "caption") ? scalar(r, y_get(root, "caption"), "'caption'") : "";
    if (parts) {
        read_collection(r, parts);
        return;
    }
    read_parts(r, root, y_get(root, "base") == NULL);
    read_reports(r, y_get(root, "reports"));
    read_checks(r, y_get(root, "checks"));
}

int manifest_load(struct manifest *m, const char *path, const char *scale, const struct registry *reg, struct err *e)
{
    *m = (struct manifest){0};
    arena_init(&m->arena, (size_t)64 << 20);
    m->path = arena_strdup(&m->arena, path);
    bool ok = false;
    for (size_t k = 0; scale_words[k]; k++)
        ok = ok || !strcmp(scale_words[k], scale);
    m->scale = arena_strdup(&m->arena, scale);
    m->dtype = "";
    struct str text = STR_INIT;
    struct yproblems pr = {.doc = &m->doc, .out = &text};
    struct reader r = {.m = m, .reg = reg, .pr = &pr};
    int rc = ok ? ydoc_load(&m->doc, &m->arena, path, e) : ERR(e, E_USAGE, "unknown scale '%s'; there are ci, tiny, small and paper",
        scale);
    if (rc == 0)
        rc = read_base(&r, &m->doc, 0, e);
    if (rc == 0) {
        read_all(&r, m->doc.root);
        rc = y_finish(&pr, e);
    }
    if (rc == 0)
        rc = arena_ok(&m->arena, "manifest", e);
    str_free(&text);
    if (rc != 0)
        manifest_free(m);
    return rc != 0 ? -1 : 0;
}

void manifest_free(struct manifest *m)
{
    arena_free(&m->arena);
    *m = (struct manifest){0};
}

/* ---- schema ---- */

static const char *type_name(const struct param_spec *p)
{
    switch (p->type) {
    case PT_INT:
        return "integer";
    case PT_NUM:
        return "number";
    case PT_BOOL:
        return "true|false";
    case PT_STR:
        return "text";
    case PT_WORD:
        return "word";
    case PT_INTS:
        return "list of integers";
    case PT_NUMS:
        return "list of numbers";
    case PT_STRS:
        return "list of text";
    case PT_PATH:
        return "path";
    case PT_REF:
        return "stage or input";
    case PT_REFS:
        return "list of stages";
    }
    return "";
}

void manifest_schema(struct str *out, const struct registry *reg)
{
    str_puts(out, "dash: 1                 # schema version\nname, title, caption    # text; the caption may stand in a scale\nbase: FILE "
             "             # a manifest beside this one whose inputs, scales and stages come first\n"
             "inputs: {NAME: {path: P, sha256: H, get: how to come by it}}\nscales: {ci|tiny|small|paper: {STAGE.parameter: value, inputs.NAME: path, skip: "
             "[STAGE], dtype: f32|bf16, caption: text}}\n"
             "stages: [{id, kind or extends: STAGE, label, matrix: {parameter: [values]}, points: [{parameter: value}], ...}]\n"
             "reports: [{kind, name, title, ...}]\nchecks: [{table: REPORT, row: ROW or BLOCK/ROW, column: NAME, min: X, max: Y, above: "
             "ROW}, {table: REPORT, against: FILE.tsv, within: X}]   # each may have scale: NAME\n"
             "manifests: [FILE, ...]  # in place of all but name, title and caption: a collection, run one after another\n\nreport kinds:");
    for (size_t i = 0; i < reg->n_report_kinds; i++)
        str_printf(out, " %s", reg->report_kinds[i]);
    str_puts(out, "\n");
    for (size_t k = 0; k < reg->n; k++) {
        const struct stage_kind *kind = reg->kinds[k];
        str_printf(out, "\nkind: %s (version %d)   %s\n", kind->name, kind->version, kind->about);
        for (size_t i = 0; i < kind->n_params; i++) {
            const struct param_spec *p = &kind->params[i];
            str_printf(out, "  %-18s %-17s ", p->name, type_name(p));
            if (!p->def)
                str_puts(out, "required      ");
            else
                str_printf(out, "default %-6s", *p->def ? p->def : "none");
            str_printf(out, " %s%s%s%s", p->help, p->unit ? " [" : "", p->unit ? p->unit : "", p->unit ? "]" : "");
            for (size_t w = 0; p->type == PT_WORD && p->words[w]; w++)
                str_printf(out, "%s%s", w ? "|" : ": ", p->words[w]);
            if (p->lo < p->hi)
                str_printf(out, p->type == PT_INT || p->type == PT_INTS ? ", %.17g..%.17g" : ", %g..%g", p->lo, p->hi);
            if (p->fan)
                str_puts(out, "; one run for each point of it");
            str_puts(out, "\n");
        }
    }
}
