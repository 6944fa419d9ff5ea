/* status: what lies in a folder of runs, which of it some manifest needs, and removing the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/repro.h"
#include "core/log.h"
#include "experiments/show.h"

struct run_row {
    const char *name, *state, *need; /* need: the manifest that it is for, "" = none */
    double seconds, bytes;
};

/* Whether a folder is called as plans call theirs: KIND-KEY12. Any other name was given by a user with --out. */
static bool named_by_key(const char *name, const char *key_text)
{
    const char *kind = strstr(key_text, "\nkind ");
    char key[65], want[128];
    if (!kind)
        return false;
    kind += strlen("\nkind ");
    run_key(key_text, key);
    snprintf(want, sizeof want, "%.*s-%.12s", (int)MIN(strcspn(kind, "\n"), (size_t)100), kind, key);
    return !strcmp(name, want);
}

/* complete, running (its process lives), partial, other (made by another version of this program); "" for what is no run. */
static struct run_row run_row(const char *runs, const char *name)
{
    char dir[1024], f[1024];
    struct err ignored = ERR_INIT;
    struct run_row r = {.name = name, .state = "", .need = ""};
    path_join(dir, runs, name);
    if (!file_exists(path_join(f, dir, "key.txt")))
        return r;
    r.seconds = run_seconds(dir);
    r.state = run_readable(dir, &ignored) == 0 ? "complete" : "other";
    if (file_exists(path_join(f, dir, "OUTPUTS")))
        return r;
    r.state = "running";
    if (lock_try(path_join(f, dir, "LOCK"), &ignored) == 0) { /* nobody holds it */
        lock_drop(f);
        r.state = "partial";
    }
    return r;
}

static double tree_bytes(const char *path)
{
    struct stat st;
    struct names names;
    struct err ignored = ERR_INIT;
    double sum = 0;
    if (lstat(path, &st) != 0)
        return 0;
    if (!S_ISDIR(st.st_mode))
        return (double)st.st_size;
    if (dir_list(path, &names, &ignored) != 0)
        return 0;
    for (size_t i = 0; i < names.n; i++) {
        char sub[1024];
        if (strlen(path) + strlen(names.v[i]) + 2 < sizeof sub)
            sum += tree_bytes(path_join(sub, path, names.v[i]));
    }
    names_free(&names);
    return sum;
}

/* Removes a run, under its lock. */
static int remove_run(const char *runs, const char *name, struct err *e)
{
    char dir[1024], f[1024];
    path_join(dir, runs, name);
    TRY(lock_take(path_join(f, dir, "LOCK"), e));
    return remove_tree(dir, e);
}

/* ---- what manifests need ---- */

/* Marks the runs of an index that one manifest needs at one scale: those whose key it knows, and those that a run which still waits could
 * turn out to be. */
static int mark_scale(struct repro *r, const struct runs_index *ix, const char **need, struct arena *a, struct err *e)
{
    struct err why = ERR_INIT;
    if (repro_open(r, &why) != 0) {
        if (why.code == E_USAGE && strstr(why.msg, "has no scale"))
            return 0;
        *e = why;
        return err_wrap(e, "nothing is removed");
    }
    for (size_t k = 0; k < r->n_parts; k++)
        for (size_t i = 0; i < r->part[k].p.n; i++) {
            const struct node *n = r->part[k].p.nodes[i];
            for (size_t j = 0; j < ix->n; j++)
                if (!need[j] && key_matches(n->lines, ix->v[j].lines))
                    need[j] = arena_printf(a, "%s at %s", r->part[k].m.name, r->scale);
        }
    repro_close(r);
    return arena_ok(a, "runs", e);
}

static int mark_manifest(const struct common *c, const char *manifest, const char *runs, const struct runs_index *ix, const char **need,
                         struct arena *a, struct err *e)
{
    for (size_t s = 0; scale_words[s]; s++) {
        struct repro r = REPRO_INIT;
        r.c = *c;
        r.manifest = manifest;
        r.runs = runs;
        r.scale = scale_words[s];
        TRY(mark_scale(&r, ix, need, a, e));
    }
    return 0;
}

/* Other YAML files lie beside manifests, too. */
static bool is_manifest(const char *path)
{
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    bool yes = file_read(path, (size_t)4 << 20, &s, &ignored) == 0 && (!strncmp(str_c(&s), "dash:", 5) || strstr(str_c(&s), "\ndash:"));
    str_free(&s);
    return yes;
}

/* Every manifest of a folder beside this program or in the current one. */
static int mark_folder(const struct common *c, const char *folder, const char *runs, const struct runs_index *ix, const char **need,
                       struct arena *a, struct err *e)
{
    char dir[1024], path[1024];
    struct names names;
    TRY(cli_bundled(dir, folder, e));
    TRY(dir_list(dir, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        const char *dot = strrchr(names.v[i], '.');
        if (dot && !strcmp(dot, ".yaml") && strcmp(names.v[i], "all.yaml") != 0) /* the collection has nothing of its own */
            rc = is_manifest(path_join(path, dir, names.v[i])) ? mark_manifest(c, path, runs, ix, need, a, e) : 0;
    }
    names_free(&names);
    return rc;
}

/* Those of experiments/ and experiments/tiny/, and those named by --keep. */
static int mark_all(const struct common *c, const struct opt_list *keep, const char *runs, const struct runs_index *ix, const char **need,
                    struct arena *a, struct err *e)
{
    TRY(mark_folder(c, "experiments", runs, ix, need, a, e));
    TRY(mark_folder(c, "experiments/tiny", runs, ix, need, a, e));
    for (size_t i = 0; i < keep->n; i++)
        TRY(mark_manifest(c, keep->v[i], runs, ix, need, a, e));
    return 0;
}

/* ---- the command ---- */

struct listing {
    const char *runs;
    bool prune, named, dry, json;
    size_t removed;
    double freed;
    struct jw w;
};

static bool may_go(const struct run_row *r)
{
    return !strcmp(r->state, "complete") || !strcmp(r->state, "partial");
}

static const char *fate(const struct listing *l, const struct run_row *r, bool by_key, bool goes)
{
    if (!l->prune)
        return "";
    if (goes)
        return l->dry ? "  no manifest needs it: would be removed" : "  no manifest needs it: removed";
    if (*r->need)
        return "  ";
    return by_key || l->named || !may_go(r) ? "  kept" : "  kept: its name was given with --out (--named: remove these, too)";
}

/* What no manifest needs goes; what is being made, or was made by another version, never does, and what a user named only when asked. */
static int one_run(struct listing *l, const char *name, const struct run_entry *at, const char *need, struct err *e)
{
    struct run_row r = run_row(l->runs, name);
    bool by_key = at && named_by_key(name, at->lines);
    char dir[1024];
    if (!*r.state)
        return 0;
    r.need = need ? need : "";
    r.bytes = tree_bytes(path_join(dir, l->runs, name));
    bool goes = l->prune && !need && (by_key || l->named) && may_go(&r);
    if (goes && !l->dry)
        TRY(remove_run(l->runs, name, e));
    if (goes) {
        l->removed++;
        l->freed += r.bytes;
    }
    jw_obj(&l->w);
    jw_kstr(&l->w, "run", r.name);
    jw_kstr(&l->w, "state", r.state);
    jw_kf64(&l->w, "seconds", r.seconds);
    jw_kf64(&l->w, "bytes", r.bytes);
    if (l->prune) {
        jw_kstr(&l->w, "needed_by", r.need);
        jw_kbool(&l->w, "named_by_out", !by_key);
        jw_kbool(&l->w, "removed", goes && !l->dry);
    }
    jw_end_obj(&l->w);
    if (!l->json)
        printf("%-40s %-9s %8.1f s %9.2f MiB%s%s\n", r.name, r.state, r.seconds, r.bytes / (1 << 20), fate(l, &r, by_key, goes), r.need);
    return 0;
}

int cmd_status(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    struct listing l = {0};
    struct opt_list keep = {0};
    const struct opt opts[] = {
        {.name = "prune", .type = OPT_BOOL, .dst = &l.prune, .help = "remove runs that no manifest needs at any scale", .group = "Runs"},
        {.name = "keep",
         .type = OPT_LIST,
         .dst = &keep,
         .arg = "MANIFEST",
         .help = "with --prune: also what this manifest needs",
         .group = "Runs"},
        {.name = "named",
         .type = OPT_BOOL,
         .dst = &l.named,
         .help = "with --prune: also runs whose folder a user named with --out",
         .group = "Runs"},
        {.name = "dry-run",
         .type = OPT_BOOL,
         .dst = &l.dry,
         .help = "with --prune: say what would be removed, remove nothing",
         .group = "Runs"},
        COMMON_OPTS(&c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab status [RUNS] [--prune [--keep MANIFEST]... [--named] [--dry-run]]",
        .about =
            "Run directories, their state and size: complete, running, partial (the command that made it goes on with it), other (made by "
            "another version of this program). --prune "
            "lists and removes those that no manifest of the folder experiments/ needs at any scale; give your own manifests by --keep. "
            "Runs that were given a name with --out are no manifest's: they stay unless --named is given.",
        .examples = "  dashlab status runs\n  dashlab status runs --prune --dry-run --keep my/study.yaml",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .max_pos = 1};
    const char *pos[1] = {"runs"};
    size_t n;
    bool done;
    struct names names;
    struct str out = STR_INIT;
    struct runs_index ix;
    struct arena a;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    if (!l.prune && (l.dry || l.named || keep.n))
        return ERR(e, E_USAGE, "--dry-run, --named and --keep belong to --prune");
    l.runs = n ? pos[0] : "runs";
    l.json = c.json;
    TRY(dir_list(l.runs, &names, e));
    arena_init(&a, 0);
    int rc = runs_index_open(&ix, l.runs, e);
    const char **need = arena_array(&a, ix.n + 1, sizeof *need);
    if (rc == 0)
        rc = arena_ok(&a, "runs", e);
    if (rc == 0 && l.prune)
        rc = mark_all(&c, &keep, l.runs, &ix, need, &a, e);
    jw_init(&l.w, &out, true);
    jw_arr(&l.w);
    for (size_t i = 0, at = 0; rc == 0 && i < names.n; i++) { /* both are sorted by name */
        while (at < ix.n && strcmp(ix.v[at].name, names.v[i]) < 0)
            at++;
        bool there = at < ix.n && !strcmp(ix.v[at].name, names.v[i]);
        rc = one_run(&l, names.v[i], there ? &ix.v[at] : NULL, there ? need[at] : NULL, e);
    }
    jw_end_arr(&l.w);
    if (rc == 0 && c.json)
        printf("%s\n", str_c(&out));
    else if (rc == 0 && l.prune)
        printf("%zu %s, %.2f MiB\n", l.removed, l.dry ? "would be removed" : "removed", l.freed / (1 << 20));
    str_free(&out);
    runs_index_close(&ix);
    names_free(&names);
    arena_free(&a);
    return rc;
}
