/* Printing of plans. */
#include "experiments/show.h"

#include <stdlib.h>
#include <string.h>

/* ---- runs that are there ---- */

int runs_index_open(struct runs_index *ix, const char *runs, struct err *e)
{
    struct names names;
    *ix = (struct runs_index){0};
    arena_init(&ix->arena, (size_t)256 << 20);
    if (!dir_exists(runs))
        return 0;
    TRY(dir_list(runs, &names, e));
    ix->v = arena_array(&ix->arena, names.n + 1, sizeof *ix->v);
    int rc = arena_ok(&ix->arena, "runs", e);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        char dir[1024], path[1024];
        struct str s = STR_INIT;
        struct err ignored = ERR_INIT;
        path_join(dir, runs, names.v[i]);
        if (file_exists(path_join(path, dir, "key.txt")) && file_read(path, 1 << 20, &s, &ignored) == 0)
            ix->v[ix->n++] = (struct run_entry){arena_strdup(&ix->arena, names.v[i]), arena_strdup(&ix->arena, str_c(&s)),
                                                file_exists(path_join(path, dir, "OUTPUTS"))};
        str_free(&s);
        rc = arena_ok(&ix->arena, "runs", e);
    }
    names_free(&names);
    return rc;
}

void runs_index_close(struct runs_index *ix)
{
    arena_free(&ix->arena);
    *ix = (struct runs_index){0};
}

bool key_matches(const char *lines, const char *key_text)
{
    while (*lines && *key_text) {
        size_t a = strcspn(lines, "\n"), b = strcspn(key_text, "\n");
        bool open = a > 1 && lines[a - 1] == '?' && lines[a - 2] == ' ';
        if (open ? b < a - 1 || strncmp(lines, key_text, a - 1) != 0 : a != b || strncmp(lines, key_text, a) != 0)
            return false;
        lines += a + (lines[a] == '\n');
        key_text += b + (key_text[b] == '\n');
    }
    return !*lines && !*key_text;
}

/* ---- why ---- */

enum { MAX_SAID = 3 };

struct differing {
    int count;
    struct {
        const char *name, *was, *now; /* lines; "" = not there */
    } v[MAX_SAID];
};

static size_t name_len(const char *line)
{
    return strcspn(line, " \n");
}

static const char *next_line(const char *s)
{
    s += strcspn(s, "\n");
    return s + (*s == '\n');
}

/* The k-th line of a text with this name; "" without one. */
static const char *line_named(const char *text, const char *name, size_t len, int k)
{
    for (const char *s = text; *s; s = next_line(s))
        if (name_len(s) == len && !strncmp(s, name, len) && k-- == 0)
            return s;
    return "";
}

static int nth_of_name(const char *text, const char *line)
{
    int k = 0;
    for (const char *s = text; s < line; s = next_line(s))
        k += name_len(s) == name_len(line) && !strncmp(s, line, name_len(line));
    return k;
}

static void put(struct differing *d, const char *name, const char *was, const char *now)
{
    if (d->count < MAX_SAID) {
        d->v[d->count].name = name;
        d->v[d->count].was = was;
        d->v[d->count].now = now;
    }
    d->count++;
}

static void compare(const char *now, const char *was, struct differing *d)
{
    *d = (struct differing){0};
    for (const char *s = now; *s; s = next_line(s)) {
        const char *other = line_named(was, s, name_len(s), nth_of_name(now, s));
        if (strcspn(s, "\n") != strcspn(other, "\n") || strncmp(s, other, strcspn(s, "\n")) != 0)
            put(d, s, other, s);
    }
    for (const char *s = was; *s; s = next_line(s))
        if (!*line_named(now, s, name_len(s), nth_of_name(was, s)))
            put(d, s, s, "");
}

static bool same_kind(const char *a, const char *b)
{
    const char *x = line_named(a, "kind", 4, 0), *y = line_named(b, "kind", 4, 0);
    return *x && strcspn(x, "\n") == strcspn(y, "\n") && !strncmp(x, y, strcspn(x, "\n"));
}

/* What a line's reference is called in the manifest: its stage, or "" */
static const char *ref_name(const struct node *n, const char *line)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (strlen(n->kind->params[i].name) == name_len(line) && !strncmp(n->kind->params[i].name, line, name_len(line)) && n->ref[i] &&
            n->ref[i][0])
            return n->ref[i][0]->stage->id;
    return "";
}

static void put_difference(const struct node *n, const char *name, const char *was, const char *now, struct str *out)
{
    size_t len = name_len(name);
    const char *a = was + (*was ? len : 0), *b = now + (*now ? len : 0);
    bool by_hash = !strncmp(b, " run ", 5) || !strncmp(b, " sha256 ", 8) || !strncmp(a, " run ", 5) || !strncmp(a, " sha256 ", 8);
    str_printf(out, "%.*s", (int)len, name);
    if (by_hash)
        str_printf(out, "%s%s%s changed", *ref_name(n, name) ? " (" : "", ref_name(n, name), *ref_name(n, name) ? ")" : "");
    else if (!*now)
        str_printf(out, " (was%.*s) is not given", (int)strcspn(a, "\n"), a);
    else if (!*was)
        str_printf(out, "%.*s is new", (int)strcspn(b, "\n"), b);
    else
        str_printf(out, "%.*s -> %.*s", (int)strcspn(a, "\n"), a, (int)strcspn(b + (*b == ' '), "\n"), b + (*b == ' '));
}

static void why_new(const struct node *n, const struct runs_index *ix, struct str *out)
{
    const struct run_entry *best = NULL;
    struct differing d, least = {.count = 1 << 20};
    for (size_t i = 0; ix && i < ix->n; i++) {
        if (!same_kind(n->lines, ix->v[i].lines))
            continue;
        compare(n->lines, ix->v[i].lines, &d);
        if (d.count && d.count < least.count) {
            least = d;
            best = &ix->v[i];
        }
    }
    if (!best) {
        str_puts(out, ix ? "no run of this kind yet" : "");
        return;
    }
    if (least.count > MAX_SAID) {
        str_puts(out, "no run like it");
        return;
    }
    for (int i = 0; i < least.count; i++) {
        str_puts(out, i ? ", " : "");
        put_difference(n, least.v[i].name, least.v[i].was, least.v[i].now, out);
    }
    str_printf(out, " (against %s)", best->name);
}

void plan_why(const struct plan *p, const struct node *n, const struct runs_index *ix, struct str *out)
{
    char where[1024];
    UNUSED(p);
    if (n->state == RUN_COMPLETE)
        return;
    if (n->stage->borrow) {
        str_puts(out, "shown when another manifest has made it");
        return;
    }
    if (n->state == RUN_PARTIAL) {
        str_puts(out, "begun and not finished: goes on");
        return;
    }
    if (n->key[0]) {
        why_new(n, ix, out);
        return;
    }
    for (size_t i = 0; i < n->kind->n_params; i++) {
        if (n->path[i] && !n->kind->params[i].free && !file_exists(n->path[i]) && !dir_exists(n->path[i])) {
            str_printf(out, "'%s' is not there", n->path[i]);
            return;
        }
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++) {
            const struct node *r = n->ref[i][k];
            bool unknown =
                !r->key[0] || (r->kind->by_content && !n->kind->params[i].whole && !file_exists(node_out(where, r, "identity.txt")));
            if (unknown && !n->kind->params[i].free) {
                str_printf(out, "waits for %s%s%s", r->stage->id, *r->point ? " " : "", r->point);
                return;
            }
        }
    }
}

/* ---- lists ---- */

static const char *state_word(const struct node *n)
{
    if (n->stage->borrow && n->state != RUN_COMPLETE)
        return "borrowed";
    if (!n->key[0])
        return "waits"; /* its key depends on a run that is not done */
    switch (n->state) {
    case RUN_NEW:
        return "to run";
    case RUN_PARTIAL:
        return "resumes";
    case RUN_COMPLETE:
        return "done";
    case RUN_OTHER:
        return "other";
    }
    return "";
}

/* The earlier node that is the same run, by its key or by what it is planned from; NULL for the first. */
static const struct node *earlier(const struct plan *const *p, size_t part, size_t at)
{
    const struct node *n = p[part]->nodes[at];
    for (size_t q = 0; q <= part; q++)
        for (size_t i = 0; i < (q == part ? at : p[q]->n); i++) {
            const struct node *o = p[q]->nodes[i];
            if (o->stage->borrow != n->stage->borrow) /* borrowed: never run there */
                continue;
            if ((n->key[0] && !strcmp(o->key, n->key)) || (n->planned[0] && !strcmp(o->planned, n->planned)))
                return o;
        }
    return NULL;
}

static void put_time(struct str *out, double s)
{
    str_printf(out, s < 7200 ? " %8.0fs" : " %8.1fh", s < 7200 ? s : s / 3600);
}

/* What is not estimated is a dash. */
static void put_cost(const struct stage_cost *c, struct str *out)
{
    if (c->tokens)
        str_printf(out, " %10" PRId64, c->tokens);
    else
        str_puts(out, "          -");
    if (c->flops > 0)
        str_printf(out, " %12.3g", c->flops);
    else
        str_puts(out, "            -");
    if (c->memory_bytes > 0)
        str_printf(out, " %6.2f GiB", c->memory_bytes / (1 << 30));
    else
        str_puts(out, "          -");
    if (c->seconds > 0)
        put_time(out, c->seconds);
    else
        str_puts(out, "         -");
}

enum { MAX_KINDS = 32 };
struct sums {
    size_t nodes;
    int done, shared, todo, kinds;
    double flops, tokens, seconds, memory;
    int waits;    /* for a choice that another run makes */
    int64_t more; /* runs that may follow, and their time */
    double more_seconds;
    struct {
        const char *kind;
        int runs;
        double flops, tokens, seconds;
        bool assumed;
    } by[MAX_KINDS];
};

/* Whether it is made of what another run is still to choose. */
static bool of_a_choice(const struct node *n)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            if (n->ref[i][k]->kind->by_content && !n->kind->params[i].whole && n->ref[i][k]->state != RUN_COMPLETE)
                return true;
    return false;
}

static void add_todo(struct sums *s, const struct node *n)
{
    int k = 0;
    s->todo++;
    s->flops += n->cost.flops;
    s->tokens += (double)n->cost.tokens;
    s->seconds += n->cost.seconds;
    s->waits += of_a_choice(n);
    s->more += n->cost.more_runs;
    s->more_seconds += (double)n->cost.more_runs * n->cost.seconds;
    while (k < s->kinds && strcmp(s->by[k].kind, n->kind->name) != 0)
        k++;
    if (k == MAX_KINDS)
        return;
    s->kinds += k == s->kinds;
    s->by[k].kind = n->kind->name;
    s->by[k].runs++;
    s->by[k].flops += n->cost.flops;
    s->by[k].tokens += (double)n->cost.tokens;
    s->by[k].seconds += n->cost.seconds;
    s->by[k].assumed = s->by[k].assumed || n->cost.assumed;
}

static void print_part(const struct plan *const *p, size_t part, const struct runs_index *ix, struct sums *sum, struct str *out)
{
    struct str why = STR_INIT;
    for (size_t i = 0; i < p[part]->n; i++) {
        const struct node *n = p[part]->nodes[i];
        bool own = !earlier(p, part, i);
        str_printf(out, "%-20s %-34.34s %-8s %-12.12s", n->stage->id, n->point, own ? state_word(n) : "shared", n->key[0] ? n->key : "-");
        put_cost(&n->cost, out);
        str_clear(&why);
        if (own && ix)
            plan_why(p[part], n, ix, &why);
        str_printf(out, "%s%s\n", why.len ? "  " : "", str_c(&why));
        sum->nodes++;
        sum->shared += !own;
        sum->done += own && n->state == RUN_COMPLETE;
        sum->memory = n->cost.memory_bytes > sum->memory ? n->cost.memory_bytes : sum->memory;
        if (own && n->state != RUN_COMPLETE && !n->stage->borrow)
            add_todo(sum, n);
    }
    str_free(&why);
}

void plans_print(const struct plan *const *p, size_t n, const struct runs_index *ix, struct str *out)
{
    struct sums s = {0};
    str_printf(out, "%-20s %-34s %-8s %-12s %10s %12s %10s %9s%s\n", "stage", "point", "state", "key", "tokens", "FLOP", "memory", "time",
               ix ? "  why" : "");
    for (size_t k = 0; k < n; k++) {
        if (n > 1)
            str_printf(out, "== %s\n", p[k]->m->name);
        print_part(p, k, ix, &s, out);
    }
    for (int k = 0; k < s.kinds && s.todo > 0; k++) {
        str_printf(out, "kind %-12s %4d to run %14.0f tokens %12.3g FLOP", s.by[k].kind, s.by[k].runs, s.by[k].tokens, s.by[k].flops);
        if (s.by[k].seconds > 0)
            str_printf(out, " %9.2f h%s", s.by[k].seconds / 3600, s.by[k].assumed ? ", rate assumed" : "");
        str_puts(out, "\n");
    }
    str_printf(out, "%zu stages: %d done, %d shared, %d to run: %.0f tokens, %.3g FLOP, at most %.2f GiB", s.nodes, s.done, s.shared,
               s.todo, s.tokens, s.flops, s.memory / (1 << 30));
    if (s.seconds > 0)
        str_printf(out, s.seconds < 36000 ? ", about %.0f min" : ", about %.1f h", s.seconds < 36000 ? s.seconds / 60 : s.seconds / 3600);
    str_puts(out, "\n");
    if (s.waits > 0 && s.seconds > 0)
        str_printf(out,
                   "%d of these are made of layers that are still to be chosen; those that come to one set are made once, so the sum is "
                   "the most\n",
                   s.waits);
    if (s.more > 0)
        str_printf(out, "a search counts as one run; up to %" PRId64 " more, %.1f h, where a first seed does not fill its column\n", s.more,
                   s.more_seconds / 3600);
}

/* ---- graph ---- */

static void put_label(struct str *out, const char *s)
{
    for (; *s; s++)
        str_putc(out, *s == '"' || *s == '\\' ? '\'' : *s);
}

/* Boxes are numbered over all plans; the box of a shared run is that of its first node. */
static size_t box_of(const struct plan *const *p, size_t n, const struct node *node)
{
    size_t at = 0;
    for (size_t q = 0; q < n; q++)
        for (size_t i = 0; i < p[q]->n; i++, at++)
            if (p[q]->nodes[i] == node) {
                const struct node *first = earlier(p, q, i);
                return first ? box_of(p, n, first) : at;
            }
    return at;
}

void plans_dot(const struct plan *const *p, size_t n, const char *name, struct str *out)
{
    size_t at = 0;
    str_printf(out, "digraph \"%s\" {\n  rankdir=LR; node [shape=box, fontname=\"sans\"];\n", name);
    for (size_t q = 0; q < n; q++)
        for (size_t i = 0; i < p[q]->n; i++, at++) {
            const struct node *m = p[q]->nodes[i];
            struct str cost = STR_INIT;
            if (earlier(p, q, i))
                continue;
            put_cost(&m->cost, &cost);
            str_printf(out, "  n%zu [label=\"", at);
            put_label(out, m->stage->id);
            str_puts(out, "\\n");
            put_label(out, m->point);
            str_printf(out, "\\n%s\\n", state_word(m));
            put_label(out, str_c(&cost) + strspn(str_c(&cost), " "));
            str_puts(out, "\"];\n");
            str_free(&cost);
            for (size_t k = 0; k < m->kind->n_params; k++)
                for (size_t r = 0; m->ref[k] && m->ref[k][r]; r++)
                    str_printf(out, "  n%zu -> n%zu;\n", box_of(p, n, m->ref[k][r]), at);
        }
    str_puts(out, "}\n");
}

void plan_print(const struct plan *p, bool dot, struct str *out)
{
    const struct plan *const one[] = {p};
    if (dot)
        plans_dot(one, 1, p->m ? p->m->name : "stage", out);
    else
        plans_print(one, 1, NULL, out);
}
