/* status, verify, doctor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/stages.h"
#include "core/prov.h"
#include "kernels/ops.h"

struct run_row {
    const char *name, *state;
    double seconds;
};

/* complete, running (its process lives), partial; "" for what is no run. */
static struct run_row run_row(const char *runs, const char *name)
{
    char dir[1024], f[1024];
    struct err ignored = ERR_INIT;
    struct run_row r = {.name = name, .state = ""};
    path_join(dir, runs, name);
    if (!file_exists(path_join(f, dir, "key.txt")))
        return r;
    r.seconds = run_seconds(dir);
    r.state = "complete";
    if (file_exists(path_join(f, dir, "OUTPUTS")))
        return r;
    r.state = "running";
    if (lock_try(path_join(f, dir, "LOCK"), &ignored) == 0) { /* nobody holds it */
        lock_drop(f);
        r.state = "partial";
    }
    return r;
}

/* Removes a partial run, under its lock. */
static int prune_run(const char *runs, const char *name, struct err *e)
{
    char dir[1024], f[1024];
    path_join(dir, runs, name);
    TRY(lock_take(path_join(f, dir, "LOCK"), e));
    return remove_tree(dir, e);
}

int cmd_status(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    bool prune = false;
    const struct opt opts[] = {{.name = "prune", .type = OPT_BOOL, .dst = &prune, .help = "remove runs that were begun and not finished",
                                .group = "Runs"}, COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab status [RUNS] [--prune]",
                                  .about = "Run directories and their state: complete, running, or partial (the command that made it goes "
                                  "on with it; --prune removes it).", .examples = "  dashlab status runs\n  dashlab status runs --prune",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts), .max_pos = 1};
    const char *pos[1] = {"runs"};
    size_t n, removed = 0;
    bool done;
    struct names names;
    struct str out = STR_INIT;
    struct jw w;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    const char *runs = n ? pos[0] : "runs";
    TRY(dir_list(runs, &names, e));
    int rc = 0;
    jw_init(&w, &out, true);
    jw_arr(&w);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        struct run_row r = run_row(runs, names.v[i]);
        if (!*r.state)
            continue;
        if (prune && !strcmp(r.state, "partial")) {
            rc = prune_run(runs, r.name, e);
            r.state = "removed";
            removed++;
        }
        jw_obj(&w);
        jw_kstr(&w, "run", r.name);
        jw_kstr(&w, "state", r.state);
        jw_kf64(&w, "seconds", r.seconds);
        jw_end_obj(&w);
        if (!c.json)
            printf("%-40s %-9s %8.1f s\n", r.name, r.state, r.seconds);
    }
    jw_end_arr(&w);
    if (c.json)
        printf("%s\n", str_c(&out));
    else if (prune)
        printf("%zu removed\n", removed);
    str_free(&out);
    names_free(&names);
    return rc;
}

int cmd_verify(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab verify RUN",
                                  .about = "Checks every file of a complete run against its OUTPUTS hashes.",
                                  .examples = "  dashlab verify runs/align-0123456789ab", .opts = opts, .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1, .max_pos = 1};
    const char *pos[1];
    size_t n;
    bool done;
    int64_t files = 0;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    TRY(run_verify(pos[0], &files, e));
    printf("%s: %" PRId64 " files as recorded\n", pos[0], files);
    return 0;
}

static bool have_program(const char *name)
{
    char path[1024];
    const char *p = getenv("PATH");
    for (; p && *p; p += strcspn(p, ":"), p += *p == ':') {
        snprintf(path, sizeof path, "%.*s/%s", (int)MIN(strcspn(p, ":"), (size_t)900), p, name);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

int cmd_doctor(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab doctor",
                                  .about = "What this build and machine can do, and what a missing piece disables.",
                                  .examples = "  dashlab doctor", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    printf("dashlab %s, commit %.12s%s, %s\n", build_version, build_commit, build_dirty ? " (modified)" : "", build_compiler);
    static const char *const names[] = {"cpu", "cuda"};
    struct pool *pool;
    TRY(pool_open(&pool, (int)c.threads, e));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct backend *be = NULL;
        struct backend_opts o = {.name = names[i], .pool = pool};
        struct err why = ERR_INIT;
        if (backend_open(&be, &o, &why) == 0)
            printf("%-10s %s, determinism %s\n", names[i], be->desc, be->determinism);
        else
            printf("%-10s no: %s\n", names[i], why.msg);
        if (be)
            backend_close(be);
    }
    pool_close(pool);
    printf("%-10s %s\n", "gnuplot", have_program("gnuplot") ? "found" : "missing: figures keep their data and script, without the picture");
    char path[1024];
    struct err why = ERR_INIT;
    static const char *const files[] = {"experiments/table1.yaml", "experiments/tiny/teacher/model.safetensors", "ruler/data/essay.txt.zst",
                                        "reports/style.gp", "baselines/index_sets.tsv"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        printf("%-10s %s\n", "bundled", cli_bundled(path, files[i], &why) == 0 ? path : why.msg);
    return 0;
}
